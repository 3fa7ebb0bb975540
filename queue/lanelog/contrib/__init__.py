"""What other people's frameworks need to work with lanelog: one module for each.

Owns the glue alone. Imports public names of lanelog, and the framework of its name. Nothing else in lanelog imports it.
"""
