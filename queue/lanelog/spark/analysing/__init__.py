"""The figures of an analysis, computed on Spark from an archive or a live log.

Owns these DataFrames. Never draws. `lanelog.spark.analyze` calls it.
"""
