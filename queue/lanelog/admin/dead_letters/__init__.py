"""Dead letters: list, choose, redrive, delete.

Owns these queries and transactions. Never reads a payload into this process to redrive it.
"""
