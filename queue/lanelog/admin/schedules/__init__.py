"""Messages of the future: recurring schedules, and messages that are not due yet.

Owns these queries and transactions. Publishes nothing that becomes due: the engine's scheduler does.
"""
