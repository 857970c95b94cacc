"""A run: cell after cell, each kept when it is there, and everything put back at the end, however that comes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean

from rich.console import Console

from bench.harness.gpu_log import GpuLog, Span
from bench.papers.common.driving import MODES, NEWEST, OPEN, Plan, Served, drive
from bench.papers.common.results import TaskResult, result_of
from bench.papers.common.server import Server, ServerError, Start
from bench.papers.common.task import Task
from bench.papers.gpreempt.catalogue import PROGRAMS
from bench.papers.gpreempt.cells import Cell, Standalone, Store
from bench.papers.gpreempt.config import Workload
from bench.papers.gpreempt.planning import SETTLE_S, Group, Schedule, cell_s
from bench.papers.gpreempt.systems.system import PLAIN, Place, System
from runlist.arrivals import Closed
from runlist.errors import RunlistError

FAILURES = (ServerError, RunlistError, RuntimeError, OSError)

ALONE_S = 1.5
"""For which a program runs alone, once a run."""

TIMELINE_S, TIMELINE_SHOWN_US = 0.4, 60_000.0
TIMELINES = ("A", "C")
"""Workloads of which the GPU's log is read, too."""


@dataclass
class Run:
    """Measures a schedule into a folder."""

    store: Store
    place: Place
    schedule: Schedule
    console: Console

    def measure(self) -> None:
        """All that is not there yet, for as long as there is time."""
        began = time.monotonic()
        todo = [(group, self._missing(group)) for group in self.schedule.groups]
        left = sum(self._group_s(systems) for group, systems in todo)
        for group, systems in todo:
            if not systems:
                continue
            expected = self._group_s(systems)
            spent = time.monotonic() - began
            if spent + expected > self.schedule.budget_s:
                self._leave_out(systems, f"time: {self.schedule.budget_s / 60:.0f} minutes were given")
                continue
            self.console.print(
                f"workload {group.workload.name}, round {group.round}: {', '.join(one.name for one in systems)} "
                f"(about {expected:.0f} s; {left / 60:.1f} min left in all)"
            )
            left -= expected
            self._measure(group, systems)

    def _missing(self, group: Group) -> list[System]:
        return [one for one in group.systems if not self.store.has(group.workload.name, one.name, group.round)]

    def _group_s(self, systems: Sequence[System]) -> float:
        return self.schedule.start_s + len(systems) * cell_s(self.schedule.window_s) if systems else 0.0

    def _leave_out(self, systems: Sequence[System], why: str) -> None:
        for system in systems:
            self.console.print(f"  {system.name}: left out: {why}", style="red", markup=False)

    def _measure(self, group: Group, systems: Sequence[System]) -> None:
        """The cells of a group. One that fails is kept as such, and costs the programs: they are started anew."""
        waiting = list(systems)
        while waiting:
            cells: list[Cell] = []
            try:
                with contextlib.ExitStack() as stack:
                    servers = self._start(stack, waiting[0], group.workload)
                    if group.name == PLAIN:
                        self._alone(group.workload, servers)
                    while waiting:
                        cell = self._cell(group, waiting.pop(0), servers)
                        cells.append(cell)
                        if cell.note or cell.died:
                            break
                    else:
                        ended = [server.end() for server in {id(each): each for each in servers.values()}.values()]
                        for cell in cells:
                            cell.correct = all(ended)
                            self.store.put(cell)
            except FAILURES as error:
                if not waiting:
                    raise
                self._failed(group, waiting.pop(0), str(error))
                for system in waiting:
                    self._failed(group, system, str(error))
                return

    def _failed(self, group: Group, system: System, why: str) -> Cell:
        cell = Cell(group.workload.name, system.name, system.title, group.round, note=why)
        self.store.put(cell)
        self.console.print(f"  {system.name}: {why}", style="red", markup=False)
        return cell

    def _start(self, stack: contextlib.ExitStack, system: System, workload: Workload) -> dict[str, Server]:
        """The processes of a group, by task. Those that measure how long a kernel is begin alone, one after the other,
        once a run.
        """
        for task in workload.tasks:
            program = PROGRAMS[task.program]
            given = program.given(self.place.emulated)
            if program.started_as(self.place.emulated) == "spin" and given not in self.place.rounds:
                with Server(self.place.process(task)) as first:
                    first.await_ready()
                    self.place.rounds[given] = str(first.ready[task.name]["rounds"])
        starts = system.starts(workload, self.place)
        with ThreadPoolExecutor(max(1, len(starts))) as pool:
            servers = list(pool.map(lambda start: _started(stack, start), starts))
        for server in servers:
            server.await_ready()
        return {task: server for server in servers for task in server.tasks}

    def _alone(self, workload: Workload, servers: Mapping[str, Server]) -> None:
        """Each program alone, where that is not known yet."""
        for task in workload.tasks:
            if self.store.standalone(self.place.kind(task)) is None:
                plan = Plan(min(ALONE_S, self.schedule.window_s), NEWEST, settle_s=0.1)
                served = drive([replace(task, load=Closed())], servers, plan)[task.name]
                if served.died:
                    raise ServerError(served.died)
                if served.done:
                    self.store.put_standalone(self.place.kind(task), _standalone(served))

    def _cell(self, group: Group, system: System, servers: Mapping[str, Server]) -> Cell:
        workload = group.workload
        cell = Cell(workload.name, system.name, system.title, group.round)
        since = time.monotonic()
        try:
            with system.around(workload, servers, self.place):
                for mode in MODES:
                    plan = self._plan(group, system, mode)
                    served = drive(system.tasks(workload), servers, plan)
                    cell.modes[mode] = self._results(system.tasks(workload), servers, served, mode)
                if workload.name in TIMELINES and group.round == 1:
                    cell.timeline = self._timeline(group, system, servers)
        except FAILURES as error:
            return self._failed(group, system, str(error))
        self.store.put(cell)
        self._tell(cell, time.monotonic() - since)
        return cell

    def _plan(self, group: Group, system: System, mode: str) -> Plan:
        window_s = self.schedule.window_s
        begins = (group.round - 1) * (window_s + SETTLE_S) % max(1.0, group.workload.seconds - window_s)
        ways = {task.name: system.ways(task) for task in group.workload.tasks}
        return Plan(window_s, mode, min(SETTLE_S, window_s), seed=group.round, skip_s=begins, ways=ways)

    def _results(
        self, tasks: Sequence[Task], servers: Mapping[str, Server], served: Mapping[str, Served], mode: str
    ) -> dict[str, TaskResult]:
        found = {}
        for task in tasks:
            each = served[task.name]
            repeats = servers[task.name].ready[task.name].get("repeats") is True
            wrong = self.store.wrong(self.place.kind(task), each.checks) if repeats else 0
            found[task.name] = result_of(task, self.place.kind(task), each, mode, wrong)
        return found

    def _timeline(self, group: Group, system: System, servers: Mapping[str, Server]) -> list[tuple[str, float, float]]:
        """Who held the GPU, by its own log, in a window of its own; nothing where the log cannot be read."""
        spans: list[Span] = []
        with contextlib.ExitStack() as stack:
            try:
                log = stack.enter_context(GpuLog())
            except FAILURES as error:
                self.console.print(f"  no timeline: {error}", style="dim", markup=False)
                return []

            def watch() -> None:
                with contextlib.suppress(*FAILURES):  # without a timeline the cell is as good
                    spans.append(log.watch(SETTLE_S + TIMELINE_S))

            watcher = threading.Thread(target=watch)
            watcher.start()
            plan = replace(self._plan(group, system, OPEN), seconds=TIMELINE_S)
            try:
                drive(system.tasks(group.workload), servers, plan)
            finally:
                watcher.join()
        return _shown(spans[0], _pids(servers)) if spans else []

    def _tell(self, cell: Cell, seconds: float) -> None:
        urgent, rest = cell.of_kind(OPEN, "LC"), cell.of_kind(OPEN, "BE")
        mean, p99 = fmean(one.mean() for one in urgent), max(one.at(99) for one in urgent)
        rate = sum(one.rate for one in rest)
        self.console.print(
            f"  {cell.title:<26} LC mean {mean / 1e3:8.3f} ms  p99 {p99 / 1e3:8.3f} ms   BE {rate:7.1f}/s   "
            f"({seconds:.0f} s)",
            highlight=False,
        )
        for note in cell.notes:
            self.console.print(f"    {note}", style="red", markup=False)


def _started(stack: contextlib.ExitStack, start: Start) -> Server:
    return stack.enter_context(Server(start))


def _standalone(served: Served) -> Standalone:
    lengths = [(done - begun) / 1e3 for begun, done in zip(served.begun, served.done, strict=True)]
    phases = {name: round(total / len(lengths) / 1e3, 2) for name, total in served.phases.items()}
    return Standalone(round(fmean(lengths), 2), round(len(lengths) / served.seconds, 3), phases)


def _pids(servers: Mapping[str, Server]) -> dict[int, str]:
    """Names of processes; one of several tasks has that of its first."""
    found: dict[int, str] = {}
    for task, server in servers.items():
        found.setdefault(int(server.ready[task]["pid"]), task)
    return found


def _shown(span: Span, names: Mapping[int, str]) -> list[tuple[str, float, float]]:
    """The end of a span, in which all work."""
    begins = span.end_ns - round((TIMELINE_S / 2) * 1e9)
    found = []
    for pid, _, start, end in span.residencies:
        since, until = (start - begins) / 1e3, (end - begins) / 1e3
        if until > 0 and since < TIMELINE_SHOWN_US:
            name = names.get(pid, "another")
            found.append((name, round(max(0.0, since), 1), round(min(until, TIMELINE_SHOWN_US), 1)))
    return found


@contextlib.contextmanager
def policy_put_back(place: Place) -> Iterator[None]:
    """The daemon has afterwards the policy that it had."""
    status = place.scheduler().status()
    try:
        yield
    finally:
        with contextlib.suppress(RunlistError):
            place.scheduler().use_policy(status.policy, status.policy_options)
