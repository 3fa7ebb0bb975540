"""`python -m lanelog`: the command line. Python imports the package before this module."""

from lanelog_command import main

if __name__ == "__main__":
    main()
