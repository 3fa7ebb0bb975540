"""Verbs that look: topics, groups, members, lanes, messages, history.

Owns these queries, and the judgement of what they show. Never changes or locks a row.
"""
