"""Methods that read: members, messages, history, the audit, a tail, the lag as one statement.

Owns these queries, and the judgement of what they show. Never changes or locks a row.
"""
