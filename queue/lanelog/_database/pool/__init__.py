"""Connections lent: the pool, transactions on it, sessions of one thread, and who gets none of too few."""
