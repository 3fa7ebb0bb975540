"""Messages whose time comes: delayed messages and recurring schedules.

Owns the scheduler and its transactions: moving what is due, firing, setting schedules back. Never touches a consumer
group's rows. The engine starts the scheduler. Administration uses its transactions for one round of maintenance.
"""
