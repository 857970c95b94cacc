"""A stranger to a process disables its channels: the driver asks only for a client of the caller's own, and takes the
handles of any. The daemon has the process run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from runlist.planes.nvidia.context import GpuContext
from runlist.planes.nvidia.rm import status
from runlist.planes.nvidia.rm.client import raw
from runlist.planes.nvidia.rm.commands import COMMANDS
from runlist.protocol.rm_autogen import Status
from tests.fixtures.daemon import Daemon, Slices, Worker

Start = Callable[..., Worker]


class Stranger:
    """A program that nobody manages, and what it can send by its own client."""

    def __init__(self, worker: Worker, slices: Slices) -> None:
        self._slices = slices
        (self._own,) = slices.contexts(worker.pid)

    def disable(self, victim: Worker, *more: int) -> int:
        """The status of disabling all channels of another process, and those with these handles behind them."""
        (context,) = self._slices.contexts(victim.pid)
        channels = [channel for group in context.groups.values() for channel in group.channels]
        context.handle.close()
        return self.send(context, [*channels, *more])

    def send(self, context: GpuContext, channels: Sequence[int]) -> int:
        """One control that disables channels of a client."""
        control = raw(
            COMMANDS["FIFO_DISABLE_CHANNELS"],
            self._own.subdevice,
            disable=1,
            count=len(channels),
            clients=[context.client] * len(channels),
            channels=list(channels),
        )
        return self._own.rm.send(control)[0]

    def close(self) -> None:
        self._own.handle.close()


@pytest.fixture
def stranger(worker: Start, slices: Slices) -> Iterator[Stranger]:
    one = Stranger(worker(idle=False), slices)
    yield one
    one.close()


def test_the_driver_takes_any_clients_channels(worker: Start, stranger: Stranger, slices: Slices) -> None:
    victim = worker()
    victim.wait_for_progress()
    assert stranger.disable(victim) == status.NV_OK
    victim.assert_stopped()
    slices.enable(victim.pid)
    victim.wait_for_progress()


def test_a_list_with_an_unknown_channel_is_done_up_to_that(worker: Start, stranger: Stranger, slices: Slices) -> None:
    victim = worker()
    assert stranger.disable(victim, 0x5C00_9999) == Status.INVALID_CHANNEL
    victim.assert_stopped()
    slices.enable(victim.pid)
    victim.wait_for_progress()


@pytest.mark.parametrize("task_class", ["latency", "batch"])
def test_who_was_stopped_by_a_stranger_runs_again(
    daemon: Daemon, worker: Start, stranger: Stranger, task_class: str
) -> None:
    """The GPU is at work all the time, since the stranger is."""
    victim = worker()
    daemon.client.attach(victim.pid, task_class)
    for _ in range(2):
        victim.wait_for_progress()
        assert stranger.disable(victim) == status.NV_OK
        victim.assert_stopped(0.2)
        victim.wait_for_progress()
