"""Verbs that change a group, a lane or the log: seek, pause, skip, release, purge, delete.

Owns these transactions. Every verb takes the lane from its owner first. `Admin` calls them.
"""
