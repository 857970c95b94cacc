"""A program of two processes, one a GPU, that NCCL joins. The first starts the second, which takes part in each step
that the first orders by a line: who waits inside NCCL instead keeps its GPU busy.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

COUNT = 2

_PORT = "RUNLIST_BENCH_PORT"
"""Where the first listens, in the second's environment."""


def is_second() -> bool:
    """Whether this process was started by `leading`."""
    return _PORT in os.environ


@contextlib.contextmanager
def leading(*words: str) -> Iterator[Callable[[], None]]:
    """The first process. `words` are this program's own, after Python's, for the second. Gives what orders a step, to
    be called before this process does its part. Ends the program where there are too few GPUs.
    """
    import torch

    if (gpus := torch.cuda.device_count()) < COUNT:
        sys.exit(f"{COUNT} GPUs are needed, and here is {gpus}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {**os.environ, _PORT: port}
    second = [sys.executable, *words]
    with subprocess.Popen(
        second, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as other:
        assert other.stdin is not None
        orders = other.stdin
        try:
            _join(0, port)
            yield lambda: print(file=orders, flush=True)
        except BaseException:
            other.kill()
            raise


def following() -> Iterator[str]:
    """The second process. Gives the orders, each of which wants one step."""
    _join(1, os.environ[_PORT])
    return iter(sys.stdin)


def _join(rank: int, port: str) -> None:
    import torch
    import torch.distributed

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", rank=rank, world_size=COUNT, device_id=torch.device("cuda", rank))
