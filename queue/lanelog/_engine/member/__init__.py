"""A member of a consumer group: the lanes that one subscription holds of one topic.

Owns every change of an attempt, and decides under which lock the lanes change. Never does I/O under that lock.
All loops of a client share the member. Handlers reach it through their message.
"""
