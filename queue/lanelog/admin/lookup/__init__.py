"""What a method needs before it starts: checked arguments, and whether the names exist.

Owns refusals and their hints. Never changes or locks a row.
"""
