"""Django's commands."""
