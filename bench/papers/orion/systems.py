"""The configurations that are compared: by what programs share the GPU, and by which rule operations are admitted."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness import library
from bench.harness.mps import Mps
from bench.papers.common.program import SHARED
from bench.papers.common.programs.serving import LAST
from bench.papers.common.server import Start
from bench.papers.common.task import Task
from bench.papers.orion.experiments import EACH, PROGRAMS, SERVED, Experiment
from runlist.errors import UsageError

PROCESSES, MPS, THREADS = "processes", "MPS", "threads"
RULES = ("greedy", "exclusive", "orion", "p99")

ALONE, SEQUENTIAL, SLICING, ALONE_UNDER_MPS = "alone", "sequential", "slicing", "mps-alone"
_SHARING = "runlist.sharing"
_MPS_PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"


@dataclass
class Place:
    """Where programs are started: on which kind of GPU, in which environment, a folder for what they share."""

    emulated: bool
    environment: Mapping[str, str]
    folder: Path
    mps: Mps


@dataclass(frozen=True)
class System:
    """One of them. `form` is what the programs are; `rule` is empty where Runlist has no part in it."""

    name: str
    title: str
    form: str = PROCESSES
    rule: str = ""

    @property
    def group(self) -> str:
        """Systems of the same group run with the same processes."""
        return f"{self.form}, ruled" if self.rule else self.form

    @property
    def is_alone(self) -> bool:
        """Whether one program at a time is asked."""
        return self.name in (ALONE, ALONE_UNDER_MPS)

    def refuses(self, experiment: Experiment, place: Place) -> str:
        """Why it cannot run this experiment; empty where it can."""
        if self.form == MPS and place.mps.missing:
            return place.mps.missing
        if self.form == MPS and self.rule and place.emulated:
            return "the emulated GPU has no MPS control daemon for `runlist run --share sms`"
        if self.form == MPS and self.rule and importlib.util.find_spec(_SHARING) is None:
            return "this Runlist has no `runlist run --share sms`"
        if self.name == ALONE_UNDER_MPS and experiment.kind != SERVED:
            return "what MPS itself costs is asked of programs that are served"
        if experiment.kind == EACH and self.name in (SEQUENTIAL, SLICING):
            return "one client at a time is all that is asked for"
        return ""

    def at_once(self, experiment: Experiment) -> bool:
        """Whether the programs are asked at the same moment."""
        return experiment.kind != EACH and self.name != SEQUENTIAL and not self.is_alone

    def ways(self) -> tuple[str, ...]:
        """Of serving requests, those that programs are asked for."""
        return ("turn",) if self.name == SEQUENTIAL else ()

    def starts(self, experiment: Experiment, place: Place) -> list[Start]:
        """The processes."""
        if self.form == THREADS:
            return [_hosted(experiment, place, self.rule)]
        return [self._process(task, place) for task in experiment.tasks]

    def _process(self, task: Task, place: Place) -> Start:
        if self.rule:
            return self._shared(task, place)
        turn = ("--turn", str(place.folder / "turn"), *(("--urgent",) if task.urgent else ()))
        words = PROGRAMS[task.program].command(place.emulated, *(turn if self.form == PROCESSES else ()))
        if self.form == PROCESSES:
            return Start((task.name,), tuple(words), place.environment)
        variables = {**place.environment, **place.mps.environment, _MPS_PRIORITY: "0" if task.urgent else "1"}
        return Start((task.name,), tuple(words), variables)

    def _shared(self, task: Task, place: Place) -> Start:
        """A process that shares the SMs with the others of the experiment, as `runlist run` has it."""
        share = ("run", "--share", "sms", "--class", "latency" if task.urgent else "batch", "--")
        text = f"{task.name}={shlex.join(PROGRAMS[task.program].words_of(place.emulated))}"
        words = (sys.executable, "-m", "runlist.cli", *share, *_host(self.rule), text)
        return Start((task.name,), words, {**place.environment, **place.mps.environment})


def _host(rule: str) -> tuple[str, ...]:
    """The words that start programs as threads."""
    return (sys.executable, "-m", f"{SHARED}.hosted", *(("--operations", rule) if rule else ()))


def _hosted(experiment: Experiment, place: Place, rule: str) -> Start:
    """All programs as threads of one process. Without a rule the one of high priority has the most urgent stream, which
    is what CUDA itself has to offer.
    """
    texts = []
    for task in experiment.tasks:
        own = ("--priority", str(LAST)) if task.urgent and not rule else ()
        texts.append(f"{task.name}={shlex.join(PROGRAMS[task.program].words_of(place.emulated, *own))}")
    variables = library.operations() if rule else {}
    words = (*_host(rule), *texts)
    return Start(tuple(task.name for task in experiment.tasks), words, {**place.environment, **variables})


SYSTEMS: dict[str, System] = {
    one.name: one
    for one in (
        System(ALONE, "each alone"),
        System(SEQUENTIAL, "one after the other"),
        System(SLICING, "time slicing"),
        System("threads", "one process, no rule", THREADS),
        *(System(f"threads-{rule}", f"one process, {rule}", THREADS, rule) for rule in RULES),
        System(ALONE_UNDER_MPS, "each alone under MPS", MPS),
        System("mps", "MPS, no rule", MPS),
        *(System(f"mps-{rule}", f"MPS, {rule}", MPS, rule) for rule in RULES),
    )
}
"""By name, in the order in which a run takes them."""


def chosen(given: str | None) -> list[System]:
    """Those of a command line, by commas; None: all. What the others are compared with is always there. Raises
    UsageError.
    """
    if given is None:
        return list(SYSTEMS.values())
    wanted = {ALONE, *filter(None, map(str.strip, given.split(",")))}
    for name in wanted:
        if name not in SYSTEMS:
            raise UsageError(f"no system {name!r}: take {', '.join(SYSTEMS)}")
    return [one for name, one in SYSTEMS.items() if name in wanted]


def groups(systems: Sequence[System]) -> list[list[System]]:
    """By the processes that they share."""
    found: dict[str, list[System]] = {}
    for one in systems:
        found.setdefault(one.group, []).append(one)
    return list(found.values())
