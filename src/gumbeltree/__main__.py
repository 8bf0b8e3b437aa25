"""`python -m gumbeltree`: the command line from a source tree or an installation."""

from gumbeltree.cli import main

if __name__ == "__main__":
    main()
