"""From the log into Parquet: the job, its consumer group, its manifest and its files.

Owns what an archive is on disk. Never deletes a message of the log. `lanelog.spark.archive` calls it.
"""
