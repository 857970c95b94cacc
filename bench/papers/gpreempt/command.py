"""`python -m bench.papers.gpreempt hello | run --out DIR | plot -r DIR`: whether it works here, measure it, draw it."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.harness import mps, record
from bench.papers.common import commands
from bench.papers.gpreempt import config, hello, page, planning
from bench.papers.gpreempt.catalogue import PROGRAMS
from bench.papers.gpreempt.cells import Store
from bench.papers.gpreempt.config import Workload
from bench.papers.gpreempt.running import Run, policy_put_back
from bench.papers.gpreempt.systems import chosen, gpreempt, reset
from bench.papers.gpreempt.systems.system import Place, System
from runlist import __version__
from runlist.demo.device import EMULATED, use_device
from runlist.errors import ExitCode, NoTargetError, UsageError
from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.workloads.options import positive, positive_int

WIDTH = 132
_SAME = ("gpus", "driver", "device", "runlist", "commit", "window_s", "eager")
"""Of a run's facts, those that must be as they were for it to be gone on with."""


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 0 when all was done; 1 when something could not be; 2 for bad input; 130 when interrupted."""
    return commands.main(_parser(), words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.papers.gpreempt", description=__doc__)
    kinds = parser.add_subparsers(required=True, metavar="COMMAND")

    one = kinds.add_parser("hello", help="whether all that a run needs works here", description=hello.__doc__)
    one.add_argument("--device", help="nvidia or emulated")
    one.set_defaults(function=_hello)

    one = kinds.add_parser("run", help="measure the workloads under all systems, into a folder")
    add = one.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="where results go; a run that is there is gone on with")
    add("--only", metavar="A,C", help=f"which workloads, of {', '.join((*config.PUBLISHED, *config.MICRO))}, or files")
    add("--systems", metavar="NAME,…", help="which systems (default: all)")
    add("--peer", action="append", default=[], metavar="NAME=PATH",
        help="a system that you built: PATH lc|be COMMAND… runs a command under it")  # fmt: skip
    add("--quick", action="store_true", help="the main workloads in short windows: at most 12 minutes")
    add("--eager", action="store_true", help="latency-critical networks kernel by kernel, and not as CUDA graphs")
    add("--rounds", type=positive_int, default=1, metavar="N", help="how often all is measured (1)")
    add("--seconds", type=positive, metavar="S", help="length of a window (default: as there is time)")
    add("--plan", action="store_true", help="say what would be done, and do nothing")
    add("--device", help="nvidia or emulated")
    add("--commit", default=record.commit(), help="of the code, where git cannot tell")
    one.set_defaults(function=_run)

    one = kinds.add_parser("plot", help="draw the figures, and write the page of them")
    one.add_argument("-r", "--results", type=Path, metavar="DIR", help="of a run")
    one.add_argument("-f", "--figures", metavar="4a,5", help="which ones (default: all)")
    one.add_argument("--document", type=Path, metavar="FILE", help="write the verdicts as Markdown, too")
    one.set_defaults(function=_plot)
    return parser


def _hello(arguments: argparse.Namespace) -> int:
    with use_device(arguments.device):  # its libraries are found by processes that begin in its environment
        return subprocess.run(
            [sys.executable, "-m", hello.__name__], env=commands.environment(), check=False
        ).returncode


def _plot(arguments: argparse.Namespace) -> int:
    return page.main(arguments.results, arguments.figures, arguments.document)


def _run(arguments: argparse.Namespace) -> int:
    console = Console(width=WIDTH)
    store = Store(arguments.out)
    workloads = _workloads(arguments)
    systems = chosen(arguments.systems, arguments.peer)
    if arguments.quick and arguments.systems is None:
        systems = {name: one for name, one in systems.items() if one not in (*gpreempt.SWEEP, reset.SYSTEM)}
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(use_device(arguments.device))
        with nvml.session(choose_driver()):
            where = record.machine()
            memory_gb = nvml.gpus()[0].memory / 1e9
        place = Place(
            emulated=device.name == EMULATED,
            environment=commands.environment(),
            folder=Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="runlist-gpreempt-"))),
            mps=mps.Mps(missing="not started yet"),
            client=None,
            eager=arguments.eager,
        )
        with contextlib.ExitStack() as trial:
            place.mps = trial.enter_context(mps.server())
            left_out = refused(workloads, systems, place, memory_gb)
            budget_s = planning.QUICK_S if arguments.quick else planning.FULL_S
            schedule = planning.schedule(
                workloads, systems, left_out, rounds=arguments.rounds, budget_s=budget_s,
                window_s=arguments.seconds or store.window_s(),
                most_s=planning.QUICK_WINDOW_S if arguments.quick else planning.WINDOW_S,
                start_s=planning.EMULATED_START_S if place.emulated else planning.START_S,
            )  # fmt: skip
            _tell(console, schedule, left_out)
            if arguments.plan:
                return ExitCode.DONE
            facts = {
                **where, "device": device.name, "runlist": __version__, "commit": arguments.commit,
                "window_s": schedule.window_s, "quick": arguments.quick, "eager": arguments.eager,
                "refused": _listed(left_out),
            }  # fmt: skip
            if store.begin(facts, _SAME):
                console.print(f"going on with the run in {arguments.out}", markup=False)
            place.client = trial.enter_context(commands.daemon())
            trial.enter_context(policy_put_back(place))
            Run(store, place, schedule, console).measure()
    console.print(f"done: python -m bench.papers.gpreempt plot -r {arguments.out}", markup=False)
    failed = [cell for cell in store.cells() if cell.notes]
    return ExitCode.FAILED if failed else ExitCode.DONE


def _workloads(arguments: argparse.Namespace) -> list[Workload]:
    if arguments.only is not None:
        names = tuple(filter(None, map(str.strip, arguments.only.split(","))))
    else:
        names = planning.QUICK_WORKLOADS if arguments.quick else (*config.PUBLISHED, *config.MICRO)
    if not names:
        raise UsageError("--only names no workload")
    found = [config.named(name) for name in names]
    if len({one.name for one in found}) < len(found):
        raise UsageError(f"--only {arguments.only}: two workloads have the same name")
    return found


def refused(
    workloads: Sequence[Workload], systems: dict[str, System], place: Place, memory_gb: float
) -> dict[tuple[str, str], str]:
    """Which cells cannot be, and why."""
    found = {}
    for workload in workloads:
        names = sorted({task.program for task in workload.tasks})
        missing = [f"{name} needs {why}" for name in names if (why := PROGRAMS[name].missing(place.emulated))]
        wanted_gb = sum(PROGRAMS[task.program].gpu_gb for task in workload.tasks)
        why = "; ".join(missing)
        if not why and wanted_gb > memory_gb:
            why = f"its programs take about {wanted_gb:.0f} GB, and the GPU has {memory_gb:.0f}"
        for name, system in systems.items():
            if reason := why or system.refuses(workload, place):
                found[workload.name, name] = reason
    return found


def _listed(refused: dict[tuple[str, str], str]) -> dict[str, dict[str, str]]:
    listed: dict[str, dict[str, str]] = {}
    for (workload, system), why in refused.items():
        listed.setdefault(workload, {})[system] = why
    return listed


def _tell(console: Console, schedule: planning.Schedule, refused: dict[tuple[str, str], str]) -> None:
    for (workload, name), why in refused.items():
        console.print(f"{workload}, {name}: left out: {why}", style="dim", markup=False)
    console.print(
        f"planned: {schedule.cells} cells with windows of {schedule.window_s:g} s, about "
        f"{schedule.planned_s / 60:.0f} minutes; it ends within {schedule.budget_s / 60:.0f}"
    )
    if not schedule.cells:
        raise NoTargetError("nothing can be measured here: " + next(iter(refused.values()), "no systems"))
