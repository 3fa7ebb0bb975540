"""From the log into Parquet: the job, its consumer group, its manifest and its files.

Owns the form of an archive on disk. Never deletes a message of the log.
"""
