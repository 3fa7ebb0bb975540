"""What stands behind the client: its subscriptions, what it measures and signals, and what was never started.

Users import the client alone. Nothing below it imports this folder.
"""
