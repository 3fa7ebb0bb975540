"""Messages in the user's hands: threads that run handlers, and messages that are pulled.

Owns the worker threads of a subscription, and the pulling in threads of the user. Never sends a statement of its own,
and never decides what comes next. A subscription starts the workers.
"""
