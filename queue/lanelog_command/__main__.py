"""`python -m lanelog_command`: the command line, for containers whose process 1 is the interpreter."""

from lanelog_command import main

if __name__ == "__main__":
    main()
