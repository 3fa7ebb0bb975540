"""From an archive back into the log.

Owns which rows are published again, and under which ids. Never changes an archive.
"""
