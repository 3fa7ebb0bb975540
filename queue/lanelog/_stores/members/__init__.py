"""Stores of who works: heartbeats of members, and the leases of lanes."""
