"""Totals: topics, groups and lanes in numbers, and the states of messages that they count.

`read` and `operate` show them. Never changes or locks a row.
"""
