"""Clients of one MPS server that are two users': whoever suspends a client has all of them off, so only root does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.client import Client
from runlist.views.structs import TaskView
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import (
    NOBODY,
    As,
    Commands,
    Daemon,
    Refused,
    Worker,
    group_of_nobody,
    needs_others,
    needs_root,
    task_of,
    wait_for,
)

pytestmark = [needs_root, pytest.mark.skipif(ON_NVIDIA, reason="a server of MPS is one user's")]
Start = Callable[..., Worker]
CLIENT = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}


@pytest.fixture
def for_all(commands: Commands, start_daemon: Callable[..., Daemon]) -> Iterator[Daemon]:
    """A daemon, and an emulated GPU, for all users."""
    gpu = Path(commands.environment["RUNLIST_EMULATED_GPU"])
    with contextlib.ExitStack() as undo:
        for path in (gpu.parent, gpu, *gpu.iterdir()):
            undo.callback(path.chmod, path.stat().st_mode & 0o7777)
            path.chmod(0o777)
        yield start_daemon("--group", group_of_nobody())


def nobody(ask: Callable[[Client], list[TaskView]]) -> list[TaskView]:
    """What nobody is answered."""

    def asking() -> list[TaskView]:
        with Client.open() as client:
            return ask(client)

    answer: list[TaskView] = As(NOBODY)(asking)
    return answer


@pytest.fixture
def own(for_all: Daemon, commands: Commands, worker: Start) -> Worker:
    """A client of nobody's, which is managed."""
    made = worker(environment={**commands.environment, **CLIENT})
    made.do(f"setuid {NOBODY}")
    nobody(lambda client: client.attach(made.pid, "batch"))
    return made


@pytest.mark.parametrize("managed", [True, False])
def test_one_that_came_a_moment_ago_is_not_stopped(
    for_all: Daemon, commands: Commands, worker: Start, own: Worker, managed: bool
) -> None:
    """What is known of clients may be two seconds old."""
    for_all.client.ps()
    other = worker(environment={**commands.environment, **CLIENT})
    if managed:
        for_all.client.attach(other.pid, "normal")
    with pytest.raises(Refused, match="only root may suspend it"):
        nobody(lambda client: client.suspend(own.pid))
    other.wait_for_progress()


def test_nor_is_one_that_comes_later(for_all: Daemon, commands: Commands, worker: Start, own: Worker) -> None:
    nobody(lambda client: client.suspend(own.pid))
    own.assert_stopped()
    other = worker(environment={**commands.environment, **CLIENT}, idle=True)
    for_all.client.attach(other.pid, "normal", wait=True)
    other.do("open")  # it is ready once it did some work
    other.wait_for_progress()
    own.wait_for_progress()
    assert not task_of(for_all, own.pid).suspended


@needs_others
def test_nor_by_one_that_had_no_work_when_it_was_suspended(
    for_all: Daemon, commands: Commands, worker: Start, own: Worker
) -> None:
    own.do("close")
    wait_for(lambda: not for_all.client.ps())
    other = worker(environment={**commands.environment, **CLIENT})
    for_all.client.attach(other.pid, "normal")
    nobody(lambda client: client.suspend(own.pid))
    own.do("open")
    wait_for(lambda: [task.suspended for task in for_all.client.ps() if task.pid == own.pid] == [False])
    other.wait_for_progress()


def test_root_has_all_of_them_off(for_all: Daemon, commands: Commands, worker: Start, own: Worker) -> None:
    for_all.client.suspend(own.pid)
    nobody(lambda client: client.suspend(own.pid))  # which takes nothing from root's word
    other = worker(environment={**commands.environment, **CLIENT}, idle=True)
    other.send("open")
    own.assert_stopped(3.0)
    assert task_of(for_all, own.pid).suspended
    for_all.client.resume(own.pid)
    other.read()
    other.wait_for_progress()
