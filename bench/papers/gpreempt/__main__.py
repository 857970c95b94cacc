"""`python -m bench.papers.gpreempt`."""

import sys

from bench.papers.gpreempt.command import main

if __name__ == "__main__":
    sys.exit(main())
