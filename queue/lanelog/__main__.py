"""`python -m lanelog`: the command line."""

from lanelog.cli import main

if __name__ == "__main__":
    main()
