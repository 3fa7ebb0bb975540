"""What leaves the database: settled messages, drained lanes, old history, what expired where nobody consumes.

Owns the janitor and its duties. Never delivers a message, and changes a group's rows only where no member can.
The engine starts the janitor; administration uses its duties for one round of maintenance.
"""
