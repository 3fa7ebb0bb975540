"""The commands that read the log: status, lists, messages, events.

Owns which values they ask for. Never changes anything. The command line imports a module when its command is asked for.
"""
