"""`python -m bench.papers.orion`."""

import sys

from bench.papers.orion.command import main

if __name__ == "__main__":
    sys.exit(main())
