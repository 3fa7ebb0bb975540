"""What the dashboard changes: actions, their previews and results, and jobs that take long."""
