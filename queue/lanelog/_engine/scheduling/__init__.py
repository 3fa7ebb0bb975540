"""Messages whose time comes: delayed messages and recurring schedules.

Owns the scheduler and its three transactions: due messages are appended, due schedules are fired, and schedules are set
back after the clock was. Never touches a consumer group's rows.
The engine starts the scheduler. Administration uses its transactions for one round of maintenance.
"""
