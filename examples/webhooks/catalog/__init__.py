"""Products, whose changes other systems follow."""
