"""Stores of what comes later: delayed messages, and schedules."""
