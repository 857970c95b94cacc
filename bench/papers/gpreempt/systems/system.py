"""What a compared system is: how the programs of a workload are started under it, and what is done around a window."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import library
from bench.harness.mps import Mps
from bench.papers.common.program import SHARED
from bench.papers.common.server import Server, Start
from bench.papers.common.task import Task
from bench.papers.gpreempt.catalogue import AS_GRAPH, PROGRAMS
from bench.papers.gpreempt.config import Workload
from runlist.client import Client

PLAIN = "plain"
"""The processes that nothing but a file of turns and a hint makes special, which several systems share."""

HINT_US = 200.0
"""How long ahead of a request its hint is, unless another is asked for: the switch of an H200 takes some 170."""


@dataclass
class Place:
    """Where programs are started: on which kind of GPU, with which environment, and a folder for what they share.
    `rounds` has, for programs of kernels that spin, how many rounds their kernels were found to need.
    """

    emulated: bool
    environment: Mapping[str, str]
    folder: Path
    mps: Mps
    client: Client | None
    rounds: dict[tuple[str, ...], str] = field(default_factory=dict)
    eager: bool = False
    """Whether latency-critical networks launch kernel by kernel, and not as CUDA graphs."""

    def scheduler(self) -> Client:
        """The daemon's."""
        if self.client is None:
            raise RuntimeError("no daemon runs here")
        return self.client

    def options(self, task: Task) -> tuple[str, ...]:
        """What a program is told besides its own options."""
        rounds = self.rounds.get(PROGRAMS[task.program].given(self.emulated))
        return (*(("--graph",) if self.as_graph(task) else ()), *(() if rounds is None else ("--rounds", rounds)))

    def as_graph(self, task: Task) -> bool:
        """Whether the program works as a CUDA graph."""
        module = PROGRAMS[task.program].started_as(self.emulated)
        return task.urgent and not self.eager and module in AS_GRAPH

    def kind(self, task: Task) -> str:
        """What has the same results, and takes as long."""
        return f"{task.program}-graph" if self.as_graph(task) else task.program

    def process(
        self, task: Task, *options: str, before: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> Start:
        """A process of its own for a task; `before` are words in front of its command."""
        words = PROGRAMS[task.program].command(self.emulated, *self.options(task), *options)
        return Start((task.name,), (*before, *words), {**self.environment, **(variables or {})})

    def hosted(self, tasks: Sequence[Task], options: Mapping[str, Sequence[str]], rule: str = "") -> Start:
        """One process for several tasks. A rule schedules their operations by it, the first task's before all."""
        if len(tasks) == 1 and not rule:
            return self.process(tasks[0], *options.get(tasks[0].name, ()))
        texts = []
        for task in tasks:
            own = (*self.options(task), *options.get(task.name, ()))
            texts.append(f"{task.name}={shlex.join(PROGRAMS[task.program].words_of(self.emulated, *own))}")
        words = (sys.executable, "-m", f"{SHARED}.hosted", *(("--operations", rule) if rule else ()), *texts)
        variables = library.operations() if rule else {}
        return Start(tuple(task.name for task in tasks), words, {**self.environment, **variables})

    @property
    def turn(self) -> tuple[str, str]:
        """The options by which programs take turns."""
        return "--turn", str(self.folder / "turn")


class System:
    """A compared system. `published` names the column of the published figures that it stands for, if any."""

    name: str
    title: str
    published: str = ""

    def refuses(self, workload: Workload, place: Place) -> str:
        """Why it cannot run this workload; empty where it can."""
        del workload, place
        return ""

    def group(self, workload: Workload) -> str:
        """Systems that name the same group run with the same processes."""
        del workload
        return PLAIN

    def tasks(self, workload: Workload) -> Sequence[Task]:
        """Those that work under it."""
        return workload.tasks

    def starts(self, workload: Workload, place: Place) -> list[Start]:
        """The processes of its group."""
        return plain(workload, place)

    def ways(self, task: Task) -> tuple[str, ...]:
        """Which of its own ways a program is asked to serve in."""
        del task
        return ()

    @contextmanager
    def around(self, workload: Workload, servers: Mapping[str, Server], place: Place) -> Iterator[None]:
        """What holds while a window lasts. What it changes is put back at the end."""
        del workload, servers, place
        yield


def check_offers(tasks: Sequence[Task], servers: Mapping[str, Server], way: str) -> None:
    """Raises RuntimeError where a program does not have what the system rests on: it would ignore it silently."""
    for task in tasks:
        if way not in servers[task.name].ready[task.name].get("ways", ()):
            raise RuntimeError(f"{task.program} does not offer {way}")


def plain(workload: Workload, place: Place) -> list[Start]:
    """A process for each task."""
    return [
        place.process(task, *place.turn, *(("--urgent", "--hint-us", f"{HINT_US:g}") if task.urgent else ()))
        for task in workload.tasks
    ]
