"""Recurring messages: what a schedule means, which occurrences are missed, and the transaction that publishes them.

Starts no thread: the scheduler's loop and maintenance call it.
"""
