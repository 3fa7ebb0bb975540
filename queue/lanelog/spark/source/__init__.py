"""The Spark format `lanelog`: batch and streaming reads of a log, and writes to it.

Owns options, planning, splits and offsets. Never settles a message.
"""
