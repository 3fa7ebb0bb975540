"""Messages whose time comes: delayed messages and recurring schedules.

Owns the scheduler and its two transactions. Never touches a consumer group's rows.
The engine starts the scheduler. Administration uses its transactions for one round of maintenance.
"""
