"""Tenants that mean harm: `python -m tests.emulated.hostile`.

Each line on standard input, `KIND SEED`, starts one as a child and is answered by its process id. This process itself
never touches the GPU, so that starting one costs a fork. A hostile process ends by itself within seconds, in its own
way; whoever started us ends our process group for those that do not.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

import runlist
from runlist import tenant
from runlist.client import Client
from runlist.errors import RunlistError
from runlist.planes.nvidia.context import GpuContext
from runlist.planes.nvidia.discover import Discoverer
from runlist.planes.nvidia.rm.client import RmClient
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.proc.borrow import OwnRight
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu

LIFE_S = 1.5
"""About how long one is at it."""
LAST_RESORT_S = 20
BLOCKS = 4
ROUNDS = 20_000


def work(rng: random.Random, seconds: float) -> None:
    """A context, and kernels of any length back to back."""
    job = Accumulator(Gpu(blocking=True), BLOCKS)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        job.launch(rng.randrange(1, ROUNDS))
        if rng.random() < 0.5:
            job.synchronize()


def work_meanwhile(rng: random.Random) -> None:
    """The same in a thread; returns when there is a context. The end of the process ends it."""
    ready = threading.Event()

    def body() -> None:
        Gpu(blocking=True)
        ready.set()
        work(rng, LAST_RESORT_S)

    threading.Thread(target=body, daemon=True).start()
    ready.wait()


def vanish(rng: random.Random) -> None:
    """End at once, giving nothing back."""
    if rng.random() < 0.5:
        os._exit(1)
    os.kill(os.getpid(), signal.SIGKILL)


def bomb(rng: random.Random) -> None:
    """Forks, all of which make contexts and vanish in the middle of their work."""
    for _ in range(3):
        if os.fork() == 0:
            break
    work(rng, rng.uniform(0.05, LIFE_S))
    vanish(rng)


def own_slices(rng: random.Random) -> None:
    """Its slices are set through the driver by a child of its own, as any process may."""
    us = os.getpid()
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        os.read(reader, 1)
        found = Discoverer(choose_driver()).discover(us, os.pidfd_open(us), OwnRight())
        contexts = [GpuContext(RmClient(client.handle, client.client), gpu) for client in found for gpu in client.gpus]
        until = time.monotonic() + LIFE_S
        with contextlib.suppress(OSError):
            while time.monotonic() < until:
                for context in contexts:
                    context.set_timeslice(rng.choice([1, 10, 499, 2_000, 1_000_000]))
                time.sleep(rng.uniform(0, 0.05))
        os._exit(0)
    os.close(reader)
    Gpu(blocking=True)
    os.write(writer, b"x")
    work(rng, 2 * LIFE_S)


def gone_while_suspended(rng: random.Random) -> None:
    """Has itself suspended by the daemon, and vanishes."""
    work_meanwhile(rng)
    until = time.monotonic() + LIFE_S
    with contextlib.suppress(OSError), Client.open() as client:
        while time.monotonic() < until:
            try:
                client.suspend(os.getpid())
                break
            except RunlistError:  # not managed yet
                time.sleep(0.05)
    time.sleep(rng.uniform(0, 0.1))
    vanish(rng)


def stopped(rng: random.Random) -> None:
    """Stopped and continued by a child, in the end killed, mostly while it is stopped."""
    us = os.getpid()
    if os.fork() == 0:
        with contextlib.suppress(ProcessLookupError):
            for _ in range(3):
                time.sleep(rng.uniform(0.05, LIFE_S / 3))
                os.kill(us, signal.SIGSTOP)
                time.sleep(rng.uniform(0.05, LIFE_S / 3))
                if rng.random() < 0.7:
                    os.kill(us, signal.SIGCONT)
            os.kill(us, signal.SIGKILL)
        os._exit(0)
    work(rng, LAST_RESORT_S)


def messages(rng: random.Random) -> None:
    """Floods of segments, reports, hints and nonsense."""
    work_meanwhile(rng)
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    with contextlib.suppress(OSError):
        raw.connect(tenant.candidates()[0])
    until = time.monotonic() + LIFE_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            kind, priority, number = rng.randrange(7), rng.randrange(-(1 << 31), 1 << 31), rng.randrange(1 << 64)
            raw.send(tenant.RECORD.pack(tenant.MAGIC, tenant.VERSION, kind, priority, 0, number, 0))
            raw.send(rng.randbytes(rng.choice([0, 31, 32, 33, 4096])))
        if rng.random() < 0.02:
            with runlist.segment(rng.randrange(100)):
                runlist.report_latency(rng.uniform(0, 10))
                runlist.hint(rng.uniform(0, 1))


def requests(rng: random.Random) -> None:
    """Attaches, changes, suspends, resumes and detaches itself, as fast as the daemon answers."""
    work_meanwhile(rng)
    us = os.getpid()
    until = time.monotonic() + LIFE_S
    with Client.open() as client:
        calls: list[Callable[[], object]] = [
            lambda: client.attach(us, "batch", settings={"weight": str(rng.randrange(1, 10_000))}),
            lambda: client.detach(us),
            lambda: client.set(us, {"cap": str(rng.randrange(1, 101)), "timeslice": str(rng.choice([1, 300, 5000]))}),
            lambda: client.set(us, {"cap": "0", "weight": "-1"}),
            lambda: client.suspend(us),
            lambda: client.resume(us),
            lambda: client.launch(us, "batch"),
        ]
        while time.monotonic() < until:
            with contextlib.suppress(RunlistError):
                rng.choice(calls)()
    vanish(rng)


KINDS: dict[str, Callable[[random.Random], None]] = {
    function.__name__: function for function in (bomb, own_slices, gone_while_suspended, stopped, messages, requests)
}


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are nobody's business here
    for line in sys.stdin:
        kind, seed = line.split()
        pid = os.fork()
        if pid == 0:
            signal.alarm(LAST_RESORT_S)
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            try:
                KINDS[kind](random.Random(int(seed)))
            finally:
                os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
