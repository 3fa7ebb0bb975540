"""From memory into the database: outcomes, run marks and dead letters.

Owns the settler, the only writer of offsets and delivery rows of a lane that this process holds. Never decides what an
outcome means. The engine starts the settler.
"""
