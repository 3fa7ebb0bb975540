"""Whether topics, groups and lanes of given names exist, and which names are near to one that does not; and which owners are alive.

Changes nothing. Administration and Spark ask it before they work.
"""
