"""NCCL through PyTorch: an all-reduce over two GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed

from bench.frameworks import ranks
from bench.frameworks.part import Part, run

COUNT = 1 << 26


def _data(rank: int) -> Any:
    return torch.randn(COUNT, device="cuda", generator=torch.Generator(device="cuda").manual_seed(rank))


def _reduced(data: Any) -> Any:
    result = data.clone()
    torch.distributed.all_reduce(result)
    torch.cuda.synchronize()
    return result


def _all_reduce(order: Callable[[], None]) -> Part:
    data = _data(0)

    def step() -> Any:
        order()
        return _reduced(data)

    return Part(lambda: bytes(step().cpu().numpy().tobytes()), step)


def _facts() -> Mapping[str, Any]:
    seen = [torch.cuda.mem_get_info(index)[1] for index in range(ranks.COUNT)]
    return {"total": min(seen), "totals": seen, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}


def _main() -> None:
    if ranks.is_second():
        orders = ranks.following()
        data = _data(1)
        for _ in orders:
            _reduced(data)
    else:
        with ranks.leading("-m", "bench.frameworks.nccl_parts") as order:
            run({"all_reduce": lambda: _all_reduce(order)}, _facts)


if __name__ == "__main__":
    _main()
