"""Stores of what is in the log: heads of lanes, messages, their reading, their leaving, dead letters."""
