"""The figures of an analysis, computed on Spark from an archive and a live log.

Owns these DataFrames. Never draws.
"""
