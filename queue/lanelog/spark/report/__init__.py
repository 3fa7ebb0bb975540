"""The report of an analysis: a page, its sections and its plots.

Owns the appearance of figures. Never computes one.
"""
