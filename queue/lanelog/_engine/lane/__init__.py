"""One lane in memory: a pure state machine, with the values that go in and come out.

Owns the arithmetic of watermark, cursor, runs, retries and pending writes. Never does I/O, takes a member's lock,
starts a thread or reads a clock. The member calls it under its lock. `policy` is the exception: it asks the user's
retry policy and logs, so it is called without a lock.
"""
