"""Cleanup: it deletes settled messages, drained lanes, old history and old dead letters, and repairs lanes.

It also moves expired messages of groups without a living member to the dead letters.

Owns the janitor and its duties, one module each: when, and how much at once. `_log` has the transactions. Never
delivers a message. The engine starts the janitor.
"""
