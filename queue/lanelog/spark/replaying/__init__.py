"""From an archive back into the log.

Owns which rows are published again, under which ids. Never changes an archive. `lanelog.spark.replay` calls it.
"""
