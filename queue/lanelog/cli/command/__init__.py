"""How a verb becomes a command: its kind, options that several verbs have, bounds, examples, completion, errors.

Owns what verbs have in common, and the exit statuses. Never knows what a verb does. The modules of the verbs call it.
"""
