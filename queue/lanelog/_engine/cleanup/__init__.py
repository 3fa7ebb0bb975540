"""Cleanup: it deletes settled messages, drained lanes, old history and old dead letters, and mends lanes.

It also moves expired messages of groups without a living member to the dead letters.

Owns the janitor and its duties: each is a module here. Never delivers a message. It changes the rows of a group's lane
only under locks. The engine starts the janitor. Administration uses its duties for one round of maintenance.
"""
