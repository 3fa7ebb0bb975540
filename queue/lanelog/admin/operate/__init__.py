"""What an operator or cron runs: the status, one round of maintenance, repairs, grants.

Owns these checks and their order. Where the engine has the same duty, both use the same transactions.
"""
