"""The process that lanelog runs in: its loops, its end, its sleep, what its handlers work on, and probes of it.

Knows no database. The engine, the worker command and the client turn its loops and answer its probes.
"""
