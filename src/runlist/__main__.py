"""`python -m runlist` is `runlist`."""

from runlist.cli import main

main()
