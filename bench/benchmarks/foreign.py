"""Programs with nothing of Runlist in them: they say the same and end the same under it, each class, with a quota."""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from bench.harness import foreign_programs, library
from bench.harness.benchmark import Needs
from bench.harness.figures import AT_MOST, Figure
from bench.harness.foreign_programs import Ended, Foreign
from runlist import interpreter
from runlist.workloads.options import positive

NEEDS = Needs("nvidia", programs=("nvcc",), modules=("torch",))
AT_ONCE = 10
RUN = ("run", "--memory", "20G")
WITHOUT, OPERATIONS = "without", "under the scheduler of operations"
SETUPS: Mapping[str, tuple[str, ...]] = {
    WITHOUT: (),
    "as batch": (*RUN, "--class", "batch", "--cap", "80", "--"),
    "as latency": (*RUN, "--class", "latency", "--"),
    OPERATIONS: (),
}


def add_options(parser: argparse._ArgumentGroup) -> None:
    """Which of them, and for how long."""
    add = parser.add_argument
    add("--programs", type=re.compile, default=re.compile(""), metavar="PATTERN", help="those whose names match (all)")
    add("--begin-within", type=positive, default=3600.0, metavar="S", help="begin none after so many seconds (3600)")


def measure(options: argparse.Namespace) -> list[Figure]:
    """How many differ from the same without Runlist."""
    with tempfile.TemporaryDirectory(prefix="runlist-bench-") as folder:
        every = foreign_programs.programs(foreign_programs.compiled(Path(folder)))
        ended = _all([each for each in every if options.programs.search(each.name)], options.begin_within)
    figures = []
    for setup in list(SETUPS)[1:]:
        different = {name: found for name, found in ended.items() if not same(found[WITHOUT], found[setup])}
        ratio = median(found[setup].seconds / found[WITHOUT].seconds for found in ended.values())
        details = {"different": different, "time / without": round(ratio, 3)}
        figures.append(
            Figure(f"{len(ended)} programs {setup}: that differ", len(different), AT_MOST, 0, details=details)
        )
    told = {name: found[WITHOUT] for name, found in ended.items()}
    left_out = sorted({each.name for each in every} - set(ended))
    return [*figures, Figure("programs left out", len(left_out), details={"left out": left_out, WITHOUT: told})]


def same(theirs: Ended, ours: Ended) -> bool:
    """Whether one ended so with Runlist as without. Numbers may differ after their third place."""
    return theirs.code == ours.code and list(map(_rough, theirs.said)) == list(map(_rough, ours.said))


def _rough(line: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.3g}", line)


def _all(every: list[Foreign], within_s: float) -> dict[str, dict[str, Ended]]:
    """How they ended, by name and setup: many at once, then those that take what others need."""
    found: dict[str, dict[str, Ended]] = {}
    until = time.monotonic() + within_s
    for alone, at_once in ((False, AT_ONCE), (True, 1)):
        with ThreadPoolExecutor(at_once) as pool:
            ended = pool.map(lambda one: (one.name, _one(one, until)), [each for each in every if each.alone == alone])
            found |= {name: by_setup for name, by_setup in ended if by_setup}
    return found


def _one(one: Foreign, until: float) -> dict[str, Ended]:
    """Empty for one that is too late."""
    found: dict[str, Ended] = {}
    for setup, words in SETUPS.items() if time.monotonic() < until else ():
        environment = library.without() | (library.operations() if setup == OPERATIONS else {})
        before = interpreter.command("runlist", *words) if words else []
        ended = found[setup] = foreign_programs.run(one, before, environment)
        said = ended.said or ended.complained[-3:]
        print(f"  {one.name} {setup}: {ended.code} in {ended.seconds} s: {' / '.join(said)[:160]}", flush=True)
    return found
