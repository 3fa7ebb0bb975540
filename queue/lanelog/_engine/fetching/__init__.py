"""From the database into memory: it finds the lanes that have new messages, and reads them.

Owns the fetcher, and the check of holes. Never decides which messages are handed out, and writes nothing. The engine
starts the fetcher.
"""
