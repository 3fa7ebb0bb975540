"""One lane in memory: a pure state machine, and the values that go in and come out.

Owns the arithmetic of watermark, cursor, runs, retries and of what must be written. Never does I/O, takes a lock,
starts a thread or reads a clock. The member calls it, under the member's lock.
"""
