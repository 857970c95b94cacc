"""A process that breaks some of its own connections to the driver is managed by the others all the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import ON_NVIDIA
from tests.fixtures.actuator import files
from tests.fixtures.daemon import Commands, Daemon, task_of, wait_for

pytestmark = pytest.mark.skipif(ON_NVIDIA, reason="a file of the driver's own cannot be broken")

_SCRIPT = """
import os, socket, sys, threading, time
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu

def connected():
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect(os.environ["RUNLIST_EMULATED_GPU"] + "/nvidiactl")
    return one

def closes_and_opens():
    while True:
        pairs, files = [socket.socketpair() for _ in range(8)], [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
        for one in (*pairs[0], *(each for pair in pairs[1:] for each in pair)):
            one.close()
        for fd in files:
            os.close(fd)

before = connected() if sys.argv[1] == "shuts" else None
gpu = Gpu(0)
job = Accumulator(gpu, blocks=gpu.sm_count)
job.launch(1)
job.synchronize()
if before:
    before.shutdown(socket.SHUT_RDWR)
    after = connected()
    after.shutdown(socket.SHUT_WR)
else:
    threading.Thread(target=closes_and_opens, daemon=True).start()
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["shuts", "closes"])
def breaking(request: pytest.FixtureRequest, commands: Commands) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, request.param],
        env=commands.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        yield process.pid
    finally:
        process.communicate()


def test_who_breaks_its_own_connections_is_managed(daemon: Daemon, breaking: int) -> None:
    for number in range(6):
        if number == 1:  # what the first needs stays
            before = files(daemon.pid)
        (task,) = daemon.client.attach(breaking, "batch")
        assert task.pid == breaking
        daemon.client.suspend(breaking)
        assert task_of(daemon, breaking).suspended
        daemon.client.resume(breaking)
        daemon.client.detach(breaking)
    wait_for(lambda: files(daemon.pid) <= before, "what was copied to be closed")
    assert "left to the driver" not in daemon.log.read_text()
