"""What real latency programs and batch jobs do to each other: alone, by default time slicing, under MPS and under
Runlist.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path

from rich.console import Console

from bench.harness import jobs, mps, pair_programs, pair_report
from bench.harness.figures import Figure
from bench.harness.pair_figures import figures, summary
from bench.harness.pair_run import FAILURES, Measured, PairRun
from runlist.demo import picture
from runlist.errors import RunlistError
from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.workloads.options import positive, positive_int

ROUNDS, SECONDS = 2, 3.0


def add_options(parser: argparse._ArgumentGroup) -> None:
    """Which pairs, in which configurations, and for how long."""
    add = parser.add_argument
    add("--pairs", type=pair_programs.checked(pair_programs.pairs), metavar="LATENCY+BATCH[*COUNT],…",
        help="which pairs (default: all that can run here)")  # fmt: skip
    add("--configurations", type=pair_programs.checked(pair_programs.configurations), metavar="NAME,…",
        default=pair_programs.CONFIGURATIONS,
        help=f"of {pair_programs.CONFIGURATIONS}, and runlist:OPTION=VALUE, of the policy priority")  # fmt: skip
    add("--rounds", type=positive_int, default=ROUNDS, metavar="N", help=f"windows of each configuration ({ROUNDS})")
    add("--seconds", type=positive, default=SECONDS, metavar="S", help=f"length of a window ({SECONDS:g})")
    add("--load", type=positive, metavar="PART",
        help="the part of all time that requests take alone (0.35; eager-llm 0.4; kernel one in 3 ms)")  # fmt: skip
    add("--budget", type=positive, metavar="S", help="begin no further pair after so many seconds")
    add("--picture", type=Path, default=Path("runlist-pairs.png"), metavar="FILE", help="where the picture is put")


def measure(options: argparse.Namespace) -> list[Figure]:
    """Each pair in turn. One whose programs fail, or are not installed here, is left out with a note."""
    driver = choose_driver()
    with nvml.session(driver):
        device, gpus = driver.name, len(nvml.gpus())
    configurations = pair_programs.configurations(options.configurations)
    console = Console(width=140)
    found: list[Measured] = []
    left_out: dict[str, str] = {}
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        client = jobs.scheduler(stack)
        for name, wanted in configurations.items():
            if name.startswith(pair_programs.RUNLIST):
                client.use_policy("priority", wanted)  # an option that is none ends the run here
        client.use_policy("priority", {})
        server = stack.enter_context(mps.server()) if pair_programs.MPS in configurations else mps.Mps()
        programs = pair_programs.PROGRAMS[device]
        run = PairRun(programs, client, server, options.load)
        for pair in pair_programs.pairs(options.pairs or pair_programs.PAIRS[device]):
            missing = _missing(pair, device, gpus)
            if not missing and options.budget is not None and time.monotonic() - began > options.budget:
                missing = f"time: {options.budget:g} s were given"
            if missing:
                left_out[str(pair)] = f"needs {missing}"
                console.print(f"  {pair} needs {missing}", style="dim")
                continue
            since = time.monotonic()
            try:
                measured = run.measure(pair, configurations, options.rounds, options.seconds)
            except FAILURES as error:
                left_out[str(pair)] = str(error)
                console.print(f"  {pair} is left out: {error}", style="red", markup=False)
                continue
            found.append(measured)
            console.print(f"  {pair} took {time.monotonic() - since:.0f} s", style="dim")
            for name, note in measured.notes.items():
                console.print(f"  {pair}, {name} is left out: {note}", style="red", markup=False)
    if not found:
        raise RuntimeError("; ".join(f"{pair}: {why}" for pair, why in left_out.items()))
    console.print(pair_report.table(found))
    _draw(console, found, options.picture, f"latency programs beside batch jobs, {device}")
    return [figure for measured in found for figure in figures(measured)] + summary(found, left_out)


def _missing(pair: pair_programs.Pair, device: str, gpus: int) -> str:
    programs = pair_programs.PROGRAMS[device]
    for name in (pair.latency, pair.batch):
        if name not in programs:
            return f"a real GPU for {name}"
        if missing := programs[name].missing(device, gpus):
            return missing
    return ""


def _draw(console: Console, found: list[Measured], path: Path, title: str) -> None:
    """A picture that cannot be made is no reason to lose the figures."""
    try:
        picture.save(pair_report.picture(found, title), path)
    except (ImportError, RunlistError) as error:
        console.print(f"no picture: {error}", style="red", markup=False)
    else:
        console.print(f"picture: {path}")
