"""A latency program with CuPy: a transform there and back, its norm, and some of it in the host's memory."""

from __future__ import annotations

import argparse
import time
from typing import Any

from bench.frameworks import served

SIDE = 1024


def _fft(_arguments: argparse.Namespace) -> None:
    """A request is short, and waits twice for the GPU. Its GPU time is not measured."""
    cupy = served.load("cupy")
    given = cupy.random.random((SIDE, SIDE)).astype(cupy.complex64)
    results: list[Any] = []

    def request(_arrival: float) -> float:
        began = time.perf_counter()
        absolute = cupy.abs(cupy.fft.ifft2(cupy.fft.fft2(given) * 2))
        results[:] = [float(absolute.sum()), absolute[:64].get()]
        return began

    def correct() -> bool:
        return bool((results[1] >= 0).all())

    for _ in range(8):
        request(0.0)
    served.requests(request, None, correct)


if __name__ == "__main__":
    served.serve({"fft": _fft}, __doc__)
