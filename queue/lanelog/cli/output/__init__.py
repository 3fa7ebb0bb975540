"""What a command prints: an answer as tables, lines or JSON, and `--watch`.

Owns widths, cropping and the form of an answer. Never asks a database. The commands make the answers.
"""
