"""The facts of the engine: its loops, its workers, the thread under each loop, and the hints between processes.

Owns declarations alone, one module for each logger.
"""
