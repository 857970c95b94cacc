"""NCCL through PyTorch: an all-reduce over two GPUs. The process is rank 0 and starts rank 1, which does the same."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any

import torch
import torch.distributed

from bench.frameworks.part import Part, run

RANKS, COUNT = 2, 1 << 26
_RANK, _PORT = "RUNLIST_BENCH_RANK", "RUNLIST_BENCH_PORT"


def _join(rank: int, port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", rank=rank, world_size=RANKS, device_id=torch.device("cuda", rank))


def _data(rank: int) -> Any:
    return torch.randn(COUNT, device="cuda", generator=torch.Generator(device="cuda").manual_seed(rank))


def _reduced(data: Any) -> Any:
    result = data.clone()
    torch.distributed.all_reduce(result)
    torch.cuda.synchronize()
    return result


def _follow(rank: int, port: str) -> None:
    """Takes part in each step that rank 0 orders by a line: who waits in NCCL instead keeps the GPU busy."""
    _join(rank, port)
    data = _data(rank)
    for _ in sys.stdin:
        _reduced(data)


def _all_reduce(orders: IO[str]) -> Part:
    data = _data(0)

    def step() -> Any:
        print(file=orders, flush=True)
        return _reduced(data)

    return Part(lambda: bytes(step().cpu().numpy().tobytes()), step)


def _facts() -> Mapping[str, Any]:
    seen = [torch.cuda.mem_get_info(index)[1] for index in range(RANKS)]
    return {"total": min(seen), "totals": seen, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}


def _lead() -> None:
    if (gpus := torch.cuda.device_count()) < RANKS:
        sys.exit(f"{RANKS} GPUs are needed, and here is {gpus}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = [sys.executable, "-m", "bench.frameworks.nccl_parts"]
    environment = {**os.environ, _RANK: "1", _PORT: port}
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as other:
        assert other.stdin is not None
        orders = other.stdin
        try:
            _join(0, port)
            run({"all_reduce": lambda: _all_reduce(orders)}, _facts)
        except BaseException:
            other.kill()
            raise


if __name__ == "__main__":
    if _RANK in os.environ:
        _follow(int(os.environ[_RANK]), os.environ[_PORT])
    else:
        _lead()
