"""Methods that change a topic, group, lane or the log: open lanes, seek, pause, skip, retry, release, purge, delete.

Owns these transactions. A method that changes a group's watermark in a lane takes the lane from its owner first.
"""
