"""What an operator or cron runs: the status, one round of maintenance, the doctor, repairs, grants.

Owns these checks and their order. Never does anything by itself that the engine does differently: both use the same
transactions. `Admin` and the command line call it.
"""
