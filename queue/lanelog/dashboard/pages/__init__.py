"""The pages: one module for what each shows."""
