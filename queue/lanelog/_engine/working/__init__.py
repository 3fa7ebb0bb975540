"""Messages reach the user's code: worker threads run handlers, or the user pulls.

Owns the worker threads of a subscription, and the hand-over to a thread of the user's (`pulling`). Never sends a
statement of its own, and never decides what comes next. A subscription starts the workers.
"""
