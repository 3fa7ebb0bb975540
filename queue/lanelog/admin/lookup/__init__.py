"""What a verb needs before it starts: checked arguments, and whether the names exist.

Owns refusals and their hints. Never changes a row, but for the number of open lanes of a topic. The other
wings call it.
"""
