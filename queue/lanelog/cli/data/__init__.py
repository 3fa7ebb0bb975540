"""The commands that bring messages into the log, and out of it: publish, archive, replay, analyze.

Owns their options and answers. Never writes a row: the client and Spark do. The command line imports a module when its
command is asked for.
"""
