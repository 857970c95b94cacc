"""`python -m bench`."""

import sys

from bench.harness.runner import main

if __name__ == "__main__":
    sys.exit(main())
