"""Verbs that change a topic, a group, a lane or the log: open lanes, seek, pause, skip, retry, release, purge, delete.

Owns these transactions. A verb that changes a group's watermark in a lane takes the lane from its owner first.
"""
