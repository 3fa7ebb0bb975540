"""Which lanes are ours: heartbeat, liveness, leases, and loading a lane's state.

Owns the keeper and everything that acquires, renews and gives back a lease. Never reads a message for delivery.
The engine starts the keeper; a subscription registers its group here.
"""
