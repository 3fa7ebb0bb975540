"""The ground: values and pure helpers that any room may use.

Names in the log, checks of arguments, payloads, cron, back-off, retry policies, text. No I/O, no thread, no
event, and nothing of lanelog below it but its errors.
"""
