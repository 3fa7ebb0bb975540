"""The report of an analysis: a page, its sections and its plots.

Owns how figures look. Never computes one.
"""
