"""From the database into memory: which lanes have messages to read, and reading them.

Owns the fetcher, and the check of offsets that the log does not hold. Never decides what is handed out, and writes
nothing. The engine starts the fetcher.
"""
