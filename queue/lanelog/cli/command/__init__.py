"""How a function becomes a command: its kind, options that several commands have, bounds, examples, completion, errors.

Owns what commands have in common, and the exit statuses. Never knows what a command does. The modules of the commands
call it.
"""
