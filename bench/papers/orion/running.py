"""A run: cell after cell, each kept when it is there, so that the same command goes on where it was interrupted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from rich.console import Console

from bench.papers.common.driving import OPEN, Plan, drive
from bench.papers.common.results import result_of
from bench.papers.common.server import Server, ServerError, Start
from bench.papers.orion.asking import ask
from bench.papers.orion.cells import Cell, Store
from bench.papers.orion.experiments import SERVED, Experiment
from bench.papers.orion.systems import Place, System, groups
from runlist.errors import RunlistError

FAILURES = (ServerError, RunlistError, RuntimeError, OSError)

SETTLE_S = 0.5


@dataclass
class Run:
    """Measures experiments under systems into a folder; windows of `window_s`, and `requests` at most where they are
    counted (None: as many as the experiment has).
    """

    store: Store
    place: Place
    console: Console
    window_s: float
    requests: int | None = None

    def measure(self, experiments: Sequence[Experiment], systems: Sequence[System], rounds: int) -> None:
        """All that is not there yet. Systems take turns: each is measured once a round."""
        for number in range(1, rounds + 1):
            for experiment in experiments:
                self.console.print(f"{experiment.key}, round {number}: {experiment.title}", markup=False)
                taken = [one for one in systems if not one.refuses(experiment, self.place)]
                for group in groups(taken):
                    missing = [one for one in group if not self.store.has(experiment.key, one.name, number)]
                    if missing:
                        self._group(experiment, missing, number)

    def _group(self, experiment: Experiment, systems: Sequence[System], number: int) -> None:
        """The cells of some processes. When one fails they are given up, and the others of the group fail with it."""
        cells: list[Cell] = []
        try:
            with contextlib.ExitStack() as stack:
                servers = self._start(stack, systems[0].starts(experiment, self.place))
                cells += (self._cell(experiment, system, number, servers) for system in systems)
                ended = [server.end() for server in _distinct(servers)]  # all of them, whatever one says
                for cell in cells:
                    cell.correct = all(ended)
        except FAILURES as error:
            for system in systems[len(cells) :] or systems[-1:]:
                cells.append(Cell(experiment.key, system.name, system.title, number, note=str(error)))
        for cell in {cell.system: cell for cell in cells}.values():
            self.store.put(cell)
            self._tell(cell)

    def _start(self, stack: contextlib.ExitStack, starts: Sequence[Start]) -> dict[str, Server]:
        """By task. On an emulated GPU one after the other: they measure how long their kernels are."""
        with ThreadPoolExecutor(1 if self.place.emulated else max(1, len(starts))) as pool:
            servers = list(pool.map(lambda start: _ready(stack.enter_context(Server(start))), starts))
        return {task: server for server in servers for task in server.tasks}

    def _cell(self, experiment: Experiment, system: System, number: int, servers: Mapping[str, Server]) -> Cell:
        cell = Cell(experiment.key, system.name, system.title, number)
        before = _counted(system, servers)
        if experiment.kind == SERVED:
            self._served(cell, experiment, system, servers)
        else:
            self._asked(cell, experiment, system, servers)
        after = _counted(system, servers)
        cell.counters = {
            task: {name: count - before[task][name] for name, count in counts.items()} for task, counts in after.items()
        }
        return cell

    def _asked(self, cell: Cell, experiment: Experiment, system: System, servers: Mapping[str, Server]) -> None:
        requests = min(experiment.requests, self.requests or experiment.requests)
        asked = ask(experiment.tasks, servers, requests, at_once=system.at_once(experiment))
        cell.asked_us, cell.each_us = asked.asked_us, asked.each_us
        for task in experiment.tasks:
            cell.wrong += self.store.wrong(task.program, asked.checks[task.name])

    def _served(self, cell: Cell, experiment: Experiment, system: System, servers: Mapping[str, Server]) -> None:
        ways = {task.name: system.ways() for task in experiment.tasks}
        settle_s = min(SETTLE_S, self.window_s)
        plan = Plan(self.window_s, OPEN, settle_s, seed=cell.round, ways=ways)
        for tasks in [[task] for task in experiment.tasks] if system.is_alone else [list(experiment.tasks)]:
            for name, served in drive(tasks, servers, plan).items():
                (task,) = (one for one in tasks if one.name == name)
                wrong = self.store.wrong(task.program, served.checks)
                cell.served[name] = result_of(task, task.program, served, OPEN, wrong)
                cell.wrong += wrong

    def _tell(self, cell: Cell) -> None:
        if cell.asked_us:
            what = "   ".join(f"{name} {median(times) / 1e3:9.3f} ms" for name, times in cell.each_us.items())
            what += f"   in all {median(cell.asked_us) / 1e3:9.3f} ms"
        else:
            what = "   ".join(
                f"{name} {task.rate:7.1f}/s p99 {task.at(99) / 1e3:8.3f} ms" for name, task in cell.served.items()
            )
        self.console.print(f"  {cell.title:<24} {what}", highlight=False, markup=False)
        for note in cell.notes:
            self.console.print(f"    {note}", style="red", markup=False)


def _distinct(servers: Mapping[str, Server]) -> list[Server]:
    return list({id(one): one for one in servers.values()}.values())


def _counted(system: System, servers: Mapping[str, Server]) -> dict[str, Mapping[str, int]]:
    """Has the system's rule in force, if it has one; what was counted of each program by then."""
    if not system.rule:
        return {}
    return {task: counts for server in _distinct(servers) for task, counts in server.use(system.rule).items()}


def _ready(server: Server) -> Server:
    server.await_ready()
    return server


@contextlib.contextmanager
def timed(console: Console) -> Iterator[None]:
    """Says at the end how long it took."""
    began = time.monotonic()
    yield
    console.print(f"{(time.monotonic() - began) / 60:.1f} minutes", highlight=False)
