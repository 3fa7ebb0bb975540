"""The transactions on the log: append, register, repair, fire, and collect.

This package has no thread, no clock of its own, and no memory of a loop. Each transaction has one order of locks, and
says what a crash leaves. The publisher, the engine, administration and Spark each take the modules that they need.
"""
