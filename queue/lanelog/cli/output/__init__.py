"""What a command prints: an answer as tables, lines or JSON, and `--watch`.

Owns columns, widths, cropping and colours. Never asks a database. The verbs make the answers.
"""
