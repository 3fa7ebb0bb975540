"""The commands that start something: workers, servers of metrics and pages, and what a database needs to begin.

Owns addresses and the life of these servers. Never knows what they serve. The command line imports a module when its
command is asked for.
"""
