"""Several clients on the SMs of one GPU at the same time, operation by operation: client 0 goes at once, and what the
others do goes when it fits beside it.

    with operations.start(clients=2, rule="orion", profiles=Path("profiles.csv")) as scheduler:
        with scheduler.client(0):               # this thread serves; before it makes streams
            ...
        with scheduler.client(1):               # in another thread, which trains
            ...

The library must be in the process, with its hooks in force: `RUNLIST_OPERATIONS=threads runlist run -- COMMAND`.
`runlist_operations.h` is the same for C.
"""

from runlist.operations.admission import ALL, ANY, CLOSED, COMPLEMENTS, OPEN, Admission, Bound
from runlist.operations.native import library
from runlist.operations.profiles import Profile, read
from runlist.operations.rules import Model, Rule, builtin_rules, load_rule
from runlist.operations.rules.interface import Counters
from runlist.operations.scheduler import MOST_CLIENTS, Scheduler, rule_of, start

__all__ = [
    "ALL",
    "ANY",
    "CLOSED",
    "COMPLEMENTS",
    "MOST_CLIENTS",
    "OPEN",
    "Admission",
    "Bound",
    "Counters",
    "Model",
    "Profile",
    "Rule",
    "Scheduler",
    "builtin_rules",
    "library",
    "load_rule",
    "read",
    "rule_of",
    "start",
]
