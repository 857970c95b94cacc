"""The command line uses the modules that are installed with it. PYTHONPATH may be meant for the program that it runs,
with others of the same names, or for another version of Python: it is looked into behind all else. Import this first.
"""

from __future__ import annotations

import os
import sys


def _look_behind() -> None:
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    try:
        named = [os.path.abspath(folder) for folder in named]
    except OSError:  # the working directory is gone
        return
    sys.path.sort(key=named.__contains__)


if sys.argv[0] == "-m" or os.path.basename(sys.argv[0]) == "runlist":  # and not in somebody's program
    _look_behind()
