"""Stores of how far groups are: registrations, offsets, deliveries in flight, history."""
