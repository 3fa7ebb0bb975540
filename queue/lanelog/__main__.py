"""`python -m lanelog`: the command line.

Python imports the package before this module, so process 1 loses a SIGTERM meanwhile: `python -m lanelog_command` does
not.
"""

from lanelog_command import main

if __name__ == "__main__":
    main()
