"""Leases: heartbeat, liveness, the leases of lanes, and the loading of a lane's state.

Owns the keeper, and every acquisition, renewal and release of a lease. Never reads a message for delivery.
The engine starts the keeper. A subscription registers its group here.
"""
