"""`python -m runlist.cli` is `runlist`."""

from runlist.cli import main

main()
