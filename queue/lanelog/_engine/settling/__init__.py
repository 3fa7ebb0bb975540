"""From memory into the database: outcomes, run marks and dead letters.

Owns the settler, which writes the offsets rows and delivery rows of the lanes that this process holds. Never decides
the meaning of an outcome. The engine starts the settler.
"""
