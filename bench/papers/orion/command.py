"""`python -m bench.papers.orion run --out DIR | plot -r DIR`: measure what scheduling operations gives, and draw it."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.harness import mps, record
from bench.papers.common import commands, pictures
from bench.papers.common.pictures import Kind
from bench.papers.common.tables import as_csv
from bench.papers.orion import document, experiments, figures, systems, tables
from bench.papers.orion.analysis import Results
from bench.papers.orion.cells import Store
from bench.papers.orion.experiments import EXPERIMENTS, PROGRAMS, Experiment
from bench.papers.orion.running import Run, timed
from bench.papers.orion.systems import SYSTEMS, Place, System
from runlist import __version__, files
from runlist.demo.device import EMULATED, use_device
from runlist.errors import ExitCode, MissingExtra, NoTargetError
from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.workloads.options import positive, positive_int

WIDTH = 132
WINDOW_S, QUICK_WINDOW_S = 12.0, 3.0
ROUNDS = 3
QUICK_REQUESTS = 5
_SAME = ("gpus", "driver", "device", "runlist", "commit", "window_s", "requests")
"""Of a run's facts, those that must be as they were for it to be gone on with."""

FOLDER = "figures"


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 0 when all was done; 1 when something could not be; 2 for bad input; 130 when interrupted."""
    return commands.main(_parser(), words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.papers.orion", description=__doc__)
    kinds = parser.add_subparsers(required=True, metavar="COMMAND")

    one = kinds.add_parser("run", help="measure the experiments in all configurations, into a folder")
    add = one.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="where results go; a run that is there is gone on with")
    add("--only", metavar="KEY,…", help=f"which experiments, of {', '.join(EXPERIMENTS)}")
    add("--systems", metavar="NAME,…", help=f"which configurations, of {', '.join(SYSTEMS)} (default: all)")
    add("--quick", action="store_true", help=f"{' and '.join(experiments.QUICK)}, once, in short windows")
    add("--rounds", type=positive_int, metavar="N", help=f"how often all is measured ({ROUNDS}; --quick: 1)")
    add("--seconds", type=positive, metavar="S", help=f"length of a window ({WINDOW_S:g}; --quick: {QUICK_WINDOW_S:g})")
    add("--requests", type=positive_int, metavar="N", help="at most so many of each where they are counted")
    add("--device", help="nvidia or emulated")
    add("--commit", default=record.commit(), help="of the code, where git cannot tell")
    one.set_defaults(function=_run)

    one = kinds.add_parser("plot", help="draw the pictures, and write the tables")
    one.add_argument("-r", "--results", type=Path, metavar="DIR", action="append", default=[],
                     help="of a run, again for one of other experiments; default: nothing was measured")  # fmt: skip
    one.add_argument("-f", "--figures", metavar="KEY,…", help=f"which pictures, of {', '.join(figures.KINDS)}")
    one.add_argument("--document", type=Path, metavar="FILE", help="write the tables between the marks of this, too")
    one.set_defaults(function=_plot)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    console = Console(width=WIDTH)
    store = Store(arguments.out)
    wanted = experiments.chosen(arguments.only, quick=arguments.quick)
    compared = systems.chosen(arguments.systems)
    rounds = arguments.rounds or (1 if arguments.quick else ROUNDS)
    window_s = arguments.seconds or (QUICK_WINDOW_S if arguments.quick else WINDOW_S)
    requests = arguments.requests or (QUICK_REQUESTS if arguments.quick else None)
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(use_device(arguments.device))
        with nvml.session(choose_driver()):
            where = record.machine()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="runlist-orion-")))
        server = stack.enter_context(mps.server())
        place = Place(device.name == EMULATED, commands.environment(), folder, server)
        left_out = refused(wanted, compared, place)
        for experiment, why in left_out.items():
            for name, reason in why.items():
                console.print(f"{experiment}, {name}: left out: {reason}", style="dim", markup=False)
        wanted = [one for one in wanted if len(left_out.get(one.key, {})) < len(compared)]
        if not wanted:
            raise NoTargetError("nothing can be measured here")
        facts = {
            **where, "device": device.name, "runlist": __version__, "commit": arguments.commit, "window_s": window_s,
            "requests": requests, "rounds": rounds, "refused": left_out,
        }  # fmt: skip
        if store.begin(facts, _SAME):
            console.print(f"going on with the run in {arguments.out}", markup=False)
        if any(one.form == systems.MPS and one.rule and not one.refuses(wanted[0], place) for one in compared):
            stack.enter_context(commands.daemon())
        with timed(console):
            Run(store, place, console, window_s, requests).measure(wanted, compared, rounds)
    console.print(f"done: python -m bench.papers.orion plot -r {arguments.out}", markup=False)
    return ExitCode.FAILED if any(cell.notes for cell in store.cells()) else ExitCode.DONE


def refused(wanted: Sequence[Experiment], compared: Sequence[System], place: Place) -> dict[str, dict[str, str]]:
    """By experiment and system, why it cannot be."""
    found: dict[str, dict[str, str]] = {}
    for experiment in wanted:
        missing = {name: PROGRAMS[name].missing(place.emulated) for name in experiment.programs}
        needs = [f"{name} needs {why}" for name, why in missing.items() if why]
        for system in compared:
            if why := "; ".join(needs) or system.refuses(experiment, place):
                found.setdefault(experiment.key, {})[system.name] = why
    return found


def _plot(arguments: argparse.Namespace) -> int:
    results = Results.of(*map(Store, arguments.results))
    if arguments.results:
        try:
            _draw(results, figures.chosen(arguments.figures), arguments.results[0] / FOLDER)
        except ImportError:
            raise MissingExtra("plot", "matplotlib", "plot") from None
    if arguments.document is not None:
        document.write(arguments.document, results)
        print(arguments.document)
    return ExitCode.DONE


def _draw(results: Results, kinds: Sequence[Kind[Results]], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for kind in kinds:
        picture = pictures.png(kind, results)
        if picture is None:
            print(f"{kind.key}: nothing of it was measured")
            continue
        files.replace(folder / f"{kind.key}.png", picture)
        print(folder / f"{kind.key}.png")
    for table, name in zip(tables.all_of(results), ("together", "overhead", "served"), strict=True):
        files.replace(folder / f"{name}.csv", as_csv(table).encode())
