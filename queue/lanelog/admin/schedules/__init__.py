"""Messages of the future: recurring schedules, and messages that are not due yet.

Owns these queries and transactions. Never publishes a message: the engine's scheduler does.
"""
