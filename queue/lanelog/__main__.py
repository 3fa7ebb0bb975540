"""`python -m lanelog` is the command line. It does nothing of its own; the interpreter calls it."""

from lanelog.cli import main

if __name__ == "__main__":
    main()
