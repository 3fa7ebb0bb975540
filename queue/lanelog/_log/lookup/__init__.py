"""Whether topics, groups and lanes of given names exist, which names are near to one, and which owners are alive.

Changes nothing. Administration and Spark ask it before they work.
"""
