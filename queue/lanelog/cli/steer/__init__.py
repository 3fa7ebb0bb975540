"""The commands that change what is in the log: groups and topics, dead letters, schedules.

Owns their answers. Never changes anything by itself: administration does. The command line imports a module when its
command is asked for.
"""
