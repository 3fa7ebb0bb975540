"""Payloads: how a value becomes the bytes of a message, and back."""
