"""Verbs that look: status, topics, groups, members, lanes, messages, history.

Owns these queries and the judgement of what they show. Never changes or locks a row. `Admin` calls them.
"""
