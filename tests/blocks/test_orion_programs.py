"""The programs of the Orion experiments, on a processor: the same bits alone and as threads of one process."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.papers.common.modules import load
from bench.papers.common.program import SHARED
from bench.papers.common.server import Server, Start
from bench.papers.common.task import Task
from bench.papers.orion.asking import SKIPPED, ask
from bench.papers.orion.experiments import PACKAGE
from runlist.arrivals import Closed
from runlist.errors import NotSupportedError

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {
    "gemm": "work gemm --size 64 --operations 3 --device cpu",
    "memory": "work memory --size 100000 --operations 3 --device cpu",
    "small": "work small --size 1024 --operations 100 --device cpu",
    "forward": "gpt forward --device cpu",
    "decode": "gpt decode --device cpu",
    "train": "gpt train --device cpu",
}
REQUESTS = 15
"""With those that are not counted, one more than there are different inputs."""


@pytest.fixture(autouse=True)
def _torch() -> None:
    """Wheels of gigabytes, which are not there everywhere."""
    try:
        load("torch")
    except NotSupportedError as error:
        pytest.skip(str(error))


def start(*names: str) -> Start:
    """A process of one program, or one that hosts several."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if len(names) == 1:
        module, *options = shlex.split(PROGRAMS[names[0]])
        return Start(names, (sys.executable, "-m", f"{PACKAGE}.{module}", *options), environment)
    texts = [f"{name}={PACKAGE}.{PROGRAMS[name]}" for name in names]
    return Start(names, (sys.executable, "-m", f"{SHARED}.hosted", *texts), environment)


def digests(starts: list[Start], *, at_once: bool) -> dict[str, dict[int, str]]:
    """Of some requests of each program, by program and number."""
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(one)) for one in starts]
        for server in servers:
            server.await_ready()
        tasks = [Task(name, name, False, Closed()) for one in starts for name in one.tasks]
        by_task = {name: server for server in servers for name in server.tasks}
        found = ask(tasks, by_task, REQUESTS, at_once=at_once)
        assert all(server.end() for server in servers)
    return found.checks


@pytest.mark.timeout(600)
@pytest.mark.parametrize("names", [("gemm", "memory"), ("decode", "train"), ("forward", "small")], ids="+".join)
def test_a_program_gives_the_same_bits_alone_and_beside_another(names: tuple[str, ...]) -> None:
    alone = digests([start(name) for name in names], at_once=False)
    assert all(len(each) == SKIPPED + REQUESTS for each in alone.values())
    assert digests([start(*names)], at_once=True) == alone
    for name, each in alone.items():
        if name == "train":  # the weights are others with each step
            assert len(set(each.values())) == len(each)
        else:
            assert each[0] == each[16]
            assert each[0] != each[1], "the input makes no difference"
