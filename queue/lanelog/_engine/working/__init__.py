"""Threads that run handlers.

Owns the worker threads of a subscription. Never sends a statement of its own, and never decides what comes next.
A subscription starts the workers.
"""
