"""A member of a consumer group: one subscription of this process to one topic, with the lanes that it holds.

Owns every change of an attempt, and decides under which lock the lanes change. Never does I/O under that lock.
All loops of a client share the member. Handlers reach it through their message.
"""
