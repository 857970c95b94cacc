"""What the PyTorch programs of the benchmark `pairs` share: CUDA graphs, waits, and the GPU time of a request."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from bench.frameworks.served import GpuTime, load

_WARM_UPS = 3
_REPEATS = 3
_BLOCKED_CYCLES = 120_000_000
"""Of the GPU's clock, which is below 2 GHz: longer than the host needs to queue a request."""


def torch_of(device: str) -> Any:
    """PyTorch, without gradients. Ends the program where it is missing, or sees no GPU."""
    torch = load("torch")
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("PyTorch sees no GPU here")
    torch.manual_seed(0)
    return torch


def waiter(torch: Any, device: str) -> Callable[[], None]:
    """What waits for all that was queued."""
    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    return wait


def warm(torch: Any, device: str, step: Callable[[], Any]) -> Any:
    """What the step returns when it has run a few times, on a stream of its own as a capture wants it."""
    result = None
    if device != "cuda":
        return step()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            result = step()
    torch.cuda.synchronize()
    return result


def captured(torch: Any, device: str, step: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """What replays the step as a CUDA graph, and where its result is then. Elsewhere it is run as it is."""
    expected = warm(torch, device, step)
    if device != "cuda":
        return (lambda: (step(), None)[1]), expected
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    graph.replay()
    torch.cuda.synchronize()
    replay: Callable[[], None] = graph.replay
    return replay, result


def finite(torch: Any, *results: Any) -> bool:
    """Whether all of these tensors hold numbers."""
    return all(bool(torch.isfinite(each).all()) for each in results)


def gpu_time(torch: Any, arguments: Any, request: Callable[[], Any], times: int = 1) -> GpuTime | None:
    """What measures the GPU time of `times` requests without their waits, if it was asked for.

    They are queued behind a kernel that keeps the GPU busy meanwhile, so that the GPU then does them without a gap:
    what lies between the two events is work. `request` must not wait for the GPU.
    """
    if not arguments.gpu_time or arguments.device != "cuda":
        return None

    def once() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(_BLOCKED_CYCLES)
        start.record()
        request()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    return lambda: times * median(once() for _ in range(_REPEATS))
