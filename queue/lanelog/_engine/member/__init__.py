"""A member of a consumer group: the lanes that one subscription holds of one topic.

Owns the lock under which lanes change, and every change of an attempt. Never does I/O under that lock.
All loops of a client share it; handlers reach it through their message.
"""
