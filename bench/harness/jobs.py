"""The programs of the scheduler's benchmarks: started side by side, managed, and measured together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from runlist.client import Client
from runlist.workloads.process import WorkloadProcess, pause_all, run_all, start_all, stop_all

Settings = Mapping[str, str]
"""As those of `runlist set`, the class among them."""

BATCH: Settings = {"class": "batch"}
LATENCY: Settings = {"class": "latency"}


def scheduler(stack: contextlib.ExitStack) -> Client:
    """A connection to the daemon, which shares by weight and class from now on."""
    client = stack.enter_context(Client.open(start=True))
    client.use_policy("priority", {})
    return client


def start(stack: contextlib.ExitStack, starts: Sequence[Callable[[], WorkloadProcess]]) -> list[WorkloadProcess]:
    """Start several programs at the same time; `stack` ends them."""
    with ThreadPoolExecutor(max(1, len(starts))) as pool:
        started = [pool.submit(one) for one in starts]
    # One that did not start must not leave the others behind.
    processes = [stack.enter_context(one.result()) for one in started if one.exception() is None]
    for one in started:
        one.result()
    return processes


def batch_jobs(
    stack: contextlib.ExitStack, count: int, *options: str, environment: Mapping[str, str] | None = None
) -> list[WorkloadProcess]:
    """Equal batch jobs: the first measures how long a kernel is, the others have the same."""
    first = stack.enter_context(WorkloadProcess("batch", *options, environment=environment))
    return [first, *like(stack, first, count - 1, *options, environment=environment)]


def like(
    stack: contextlib.ExitStack,
    first: WorkloadProcess,
    count: int,
    *options: str,
    environment: Mapping[str, str] | None = None,
) -> list[WorkloadProcess]:
    """More of the same kind and size as `first`."""
    words = ("--rounds", str(first.ready["rounds"]), *options)
    return start(stack, [lambda: WorkloadProcess(first.name, *words, environment=environment)] * count)


@contextlib.contextmanager
def working(processes: Sequence[WorkloadProcess]) -> Iterator[None]:
    """All of them work meanwhile."""
    run_all(processes)
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # one that died has told so where it was measured
            pause_all(processes)


@contextlib.contextmanager
def managed(client: Client, settings: Mapping[WorkloadProcess, Settings]) -> Iterator[None]:
    """All of them are managed meanwhile, with these settings."""
    try:
        for process, wanted in settings.items():
            client.attach(process.pid, None, settings=wanted)
        yield
    finally:
        there = {task.pid for task in client.ps()}
        for process in settings:
            if process.pid in there:
                client.detach(process.pid)


def measured(processes: Sequence[WorkloadProcess], wait: Callable[[], Any]) -> tuple[list[dict[str, Any]], Any]:
    """A window of each of them while `wait` waits; the windows, and what it returns."""
    start_all(processes)
    result = wait()
    return stop_all(processes), result


def windows(processes: Sequence[WorkloadProcess], seconds: float) -> list[dict[str, Any]]:
    """A window of so many seconds of each, where nothing is to be watched meanwhile."""
    return measured(processes, lambda: wait(seconds))[0]


def wait(seconds: float) -> None:
    """Let them work."""
    time.sleep(seconds)


def rate(window: Mapping[str, Any]) -> float:
    """Kernels a second."""
    return float(window["kernels"] / window["seconds"])


def rate_alone(process: WorkloadProcess, seconds: float) -> float:
    """Its kernels a second when nobody else works."""
    with working([process]):
        return rate(process.measure(seconds))


def all_correct(processes: Sequence[WorkloadProcess]) -> bool:
    """End them in order; whether all their results were right."""
    return all(process.quit()["correct"] for process in processes)
