"""The views of the log: the columns of each list, declared once for the command line and the dashboard.

Owns what a column is called, how its value is read and written, and what is wrong in it. Never prints and never asks a
database. The command line shows a whole view; a page of the dashboard names the columns that it shows.
"""
