"""One pair of the benchmark `pairs`: its programs are started once for each way of sharing, and take turns."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeVar

from bench.harness import jobs
from bench.harness.cpu import Used
from bench.harness.mps import Mps
from bench.harness.pair_programs import ALONE, DEFAULT, LOAD, MPS, RUNLIST, Pair, Program, environment
from runlist.client import Client
from runlist.errors import RunlistError
from runlist.views.structs import TaskView
from runlist.workloads.process import WorkloadError, WorkloadProcess, ask_all

START_S, MANAGED_S, END_S = 150.0, 5.0, 5.0
SETTLE_S = 1.0
"""For how long everything works as in a window before it begins: schedulers may take that long to learn."""

LENGTH_S, LENGTH_WINDOWS, LENGTH_REQUESTS = 1.0, 4, 10
_FLAT_OUT = 1e5

FAILURES = (RunlistError, RuntimeError, OSError, subprocess.SubprocessError)

_Result = TypeVar("_Result")

PLAIN = "plain"
"""The programs of the configurations `alone` and `default`."""


class NoAnswerError(WorkloadError):
    """Nothing was answered in a window, but the programs go on."""


@dataclass
class Samples:
    """What the windows of one configuration gave, by round: response times in µs from the arrival on, without what the
    timer was late; what that was; requests a second; the rate of each batch program; and the CPU time of daemon and
    keeper, as a part of a core; and the response times of the moment before each window.
    """

    responses: list[list[float]] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    batch: list[list[float]] = field(default_factory=list)
    daemon: list[float] = field(default_factory=list)
    before: list[list[float]] = field(default_factory=list)

    def add_requests(self, window: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        """A window of the latency program, and what came before it. Raises NoAnswerError if nothing was answered in
        the window.
        """
        if not window["response_us"]:
            raise NoAnswerError(f"no request was answered in {window['seconds']:.1f} s")
        self.responses.append(_responses(window))
        self.before.append(_responses(before))
        self.wakes += window["wake_us"]
        self.rates.append(len(window["response_us"]) / window["seconds"])

    @property
    def all_responses(self) -> list[float]:
        """Of all rounds."""
        return [one for each in self.responses for one in each]

    @property
    def rate(self) -> float:
        """Requests a second."""
        return fmean(self.rates)

    @property
    def batch_rate(self) -> float:
        """Kernels or steps a second, of all batch programs together."""
        return fmean(sum(each) for each in self.batch)


@dataclass(frozen=True)
class Length:
    """What a latency program is alone: the mean length of a request, its GPU time in µs and what told that, and the
    rate of requests that was chosen by it.
    """

    mean_us: float
    gpu_us: float
    gpu_by: str
    rate: float

    @classmethod
    def of(cls, lengths_us: Sequence[float], load: float, measured_us: float | None, known_us: float | None) -> Length:
        """From requests one behind the other. The GPU time is what the program measured, or what is known of it, else
        the length of the shortest request.
        """
        mean_us = fmean(lengths_us)
        if measured_us is not None:
            gpu_us, gpu_by = measured_us, "events around work that was queued without a gap"
        elif known_us is not None:
            gpu_us, gpu_by = known_us, "the length of its kernels"
        else:
            gpu_us, gpu_by = min(lengths_us), "the length of its shortest request alone"
        return cls(mean_us, gpu_us, gpu_by, load / (mean_us / 1e6))


@dataclass
class Measured:
    """A pair; `notes` say which configurations were left out, and why."""

    pair: Pair
    length: Length
    notes: dict[str, str] = field(default_factory=dict)
    samples: dict[str, Samples] = field(default_factory=dict)
    correct: bool = True


class Group:
    """The programs of one way of sharing."""

    def __init__(self) -> None:
        self.stack = contextlib.ExitStack()
        self.latency: WorkloadProcess
        self.batches: list[WorkloadProcess] = []

    @property
    def everyone(self) -> list[WorkloadProcess]:
        """The latency program first."""
        return [self.latency, *self.batches]


def group_of(configuration: str) -> str:
    """Which programs a configuration is measured with."""
    return {ALONE: PLAIN, DEFAULT: PLAIN, MPS: MPS}.get(configuration, RUNLIST)


class PairRun:
    """Measures pairs, one after the other. `load` is the part of all time that requests take alone, where the programs'
    own are not wanted.
    """

    def __init__(self, programs: Mapping[str, Program], client: Client, server: Mps, load: float | None = None) -> None:
        self._programs = programs
        self._client = client
        self._server = server
        self._load = load
        self._lengths: dict[str, Length] = {}

    def measure(
        self, pair: Pair, configurations: Mapping[str, Mapping[str, str]], rounds: int, seconds: float
    ) -> Measured:
        """Raises one of FAILURES when the programs do not work without any sharing; a configuration that fails is only
        left out, with a note.
        """
        notes: dict[str, str] = {}
        wanted = dict(configurations)
        if MPS in wanted and self._server.missing:
            notes[MPS] = self._server.missing
            del wanted[MPS]
        with contextlib.ExitStack() as stack:
            groups = self._start(stack, pair, list(dict.fromkeys(map(group_of, wanted))), notes)
            measured = Measured(pair, self._length(groups[PLAIN].latency, self._programs[pair.latency]), notes)
            for group in groups.values():
                group.latency.set_rate(measured.length.rate)
            for turn in range(rounds):
                for name in list(wanted)[:: -1 if turn % 2 else 1]:
                    if group_of(name) in groups and name not in notes:
                        self._turn(groups, measured, name, wanted[name], seconds)
            ended = [_end(group.everyone) for group in groups.values()]  # all of them, also behind one that is wrong
            measured.correct = all(ended)
        return measured

    def _turn(
        self, groups: dict[str, Group], measured: Measured, name: str, options: Mapping[str, str], seconds: float
    ) -> None:
        """One window. Where it fails the configuration is left out from then on, and its programs are ended."""
        samples = measured.samples.setdefault(name, Samples())
        try:
            self._window(groups[group_of(name)], name, options, seconds, samples)
        except FAILURES as error:
            measured.notes[name] = str(error)
            del measured.samples[name]
            if not isinstance(error, NoAnswerError):  # nobody knows what they still have to answer
                groups.pop(group_of(name)).stack.close()
            if name == ALONE or PLAIN not in groups:
                raise

    def _start(
        self, stack: contextlib.ExitStack, pair: Pair, names: Sequence[str], notes: dict[str, str]
    ) -> dict[str, Group]:
        """All at the same time, but for those that measure how long a kernel is: these first, one after the other."""
        programs = [self._programs[pair.latency], *[self._programs[pair.batch]] * pair.count]
        groups = {name: Group() for name in names}
        for group in groups.values():
            stack.push(group.stack)
        processes: dict[tuple[str, int], WorkloadProcess] = {}
        rounds: dict[str, str] = {}
        for place, program in enumerate(programs[:2]):
            if program.workload:
                first = groups[PLAIN].stack.enter_context(self._one(program, PLAIN, place, rounds))
                processes[PLAIN, place] = first
                rounds[program.name] = str(first.ready["rounds"])
        missing = [one for name in names for place in range(len(programs)) if (one := (name, place)) not in processes]
        with ThreadPoolExecutor(max(1, len(missing))) as pool:
            starting = {
                (name, place): pool.submit(self._one, programs[place], name, place, rounds) for name, place in missing
            }
        failed: dict[str, BaseException] = {}
        for (name, place), future in starting.items():
            if (error := future.exception()) is None:
                processes[name, place] = groups[name].stack.enter_context(future.result())
            else:
                failed.setdefault(name, error)
        if PLAIN in failed:
            raise failed[PLAIN]
        for name, error in failed.items():
            notes[name] = str(error)
            groups.pop(name).stack.close()
        for name, group in groups.items():
            group.latency, *group.batches = (processes[name, place] for place in range(len(programs)))
        return groups

    def _one(self, program: Program, group: str, place: int, rounds: Mapping[str, str]) -> WorkloadProcess:
        arguments = ["--rounds", rounds[program.name]] if program.name in rounds else []
        if program.tells_gpu_time and group == PLAIN:
            arguments.append("--gpu-time")
        words = program.command(*arguments)
        variables = environment()
        if group == MPS:
            variables.update(self._server.environment)
        elif group == RUNLIST:
            task_class = "batch" if place else "latency"
            words = [sys.executable, "-m", "runlist.cli", "run", "--class", task_class, "--", *words]
        return WorkloadProcess(program.name, environment=variables, words=words, ready_s=START_S)

    def _length(self, process: WorkloadProcess, program: Program) -> Length:
        """Measured once a run, alone: the rate is the same in all configurations of all pairs."""
        if program.name not in self._lengths:
            lengths: list[float] = []
            with jobs.working([process]):
                process.set_rate(_FLAT_OUT)
                for _ in range(LENGTH_WINDOWS):
                    window = process.measure(LENGTH_S)
                    lengths += window["latency_us"]
                    if len(lengths) >= LENGTH_REQUESTS:
                        break
            if not lengths:
                raise WorkloadError(f"{program.name} answers no request in {LENGTH_WINDOWS * LENGTH_S:g} s, alone")
            load = self._load or program.load or LOAD
            self._lengths[program.name] = Length.of(lengths, load, window.get("gpu_us"), program.gpu_us)
        return self._lengths[program.name]

    def _window(self, group: Group, name: str, options: Mapping[str, str], seconds: float, samples: Samples) -> None:
        if name == ALONE:
            (window,), before = _measured([group.latency], seconds)
            samples.add_requests(window, before)
            samples.batch.append([jobs.rate(each) for each in _measured(group.batches[:1], seconds / 2)[0]])
            return
        if group_of(name) == RUNLIST:
            self._manage(options, len(group.batches))
            (windows, before), used = self._beside_the_daemon(lambda: _measured(group.everyone, seconds))
            samples.daemon.append(used)
        else:
            windows, before = _measured(group.everyone, seconds)
        samples.add_requests(windows[0], before)
        samples.batch.append([jobs.rate(each) for each in windows[1:]])

    def _beside_the_daemon(self, measure: Callable[[], _Result]) -> tuple[_Result, float]:
        """What was measured, and the part of a core that daemon and keeper used meanwhile."""
        status = self._client.status()
        used = Used([status.pid, status.keeper_pid])
        return measure(), used.share()

    def _manage(self, options: Mapping[str, str], batches: int) -> None:
        """The policy with these options. Raises RuntimeError when not all of the programs are managed."""
        if self._client.status().policy_options != options:
            self._client.use_policy("priority", options)
        until = time.monotonic() + MANAGED_S
        while (lacking := unmanaged(self._client.ps(), batches)) and time.monotonic() < until:
            time.sleep(0.05)
        if lacking:
            raise RuntimeError(lacking)


def unmanaged(tasks: Sequence[TaskView], batches: int) -> str:
    """What of one latency program and so many batch programs is not managed, and why; empty when all are."""
    managed = [task.task_class for task in tasks if task.reached_by]
    if "latency" in managed and managed.count("batch") >= batches:
        return ""
    reasons = dict.fromkeys(f"{task.task_class}: {task.why}" for task in tasks if not task.reached_by)
    return "; ".join(reasons) or f"{len(managed)} tasks are managed, and {1 + batches} programs work"


def _measured(processes: Sequence[WorkloadProcess], seconds: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A window of each, and what the first of them did before."""
    with jobs.working(processes):
        before, *_ = jobs.windows(processes, SETTLE_S)
        return jobs.windows(processes, seconds), before


def _responses(window: Mapping[str, Any]) -> list[float]:
    return [response - wake for response, wake in zip(window["response_us"], window["wake_us"], strict=True)]


def _end(processes: Sequence[WorkloadProcess]) -> bool:
    """End them, all at the same time; whether their results were right."""
    try:
        results = [end["correct"] for end in ask_all(processes, "quit", "end")]
    except FAILURES:
        return False
    until = time.monotonic() + END_S
    while any(process.alive for process in processes) and time.monotonic() < until:
        time.sleep(0.02)
    return all(results)
