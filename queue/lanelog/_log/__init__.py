"""The transactions on the log: what appends to it, registers on it, repairs it, fires into it and leaves it.

No thread, no loop's memory and no clock of its own. Each has one order of locks, and says what a crash leaves. The
publisher, the engine, administration and Spark call it, and each takes the modules that it needs.
"""
