"""Latency programs with JAX: one jitted step of a network, long, or short with its result in the host's memory."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from bench.frameworks import served

WIDTH, LAYERS, BATCH = 4096, 8, 2048
SHORT_WIDTH, SHORT_LAYERS, SHORT_BATCH = 2048, 12, 64


def _long(arguments: argparse.Namespace) -> None:
    _step(arguments, WIDTH, LAYERS, BATCH)


def _short(arguments: argparse.Namespace) -> None:
    _step(arguments, SHORT_WIDTH, SHORT_LAYERS, SHORT_BATCH, takes_home=True)


def _step(arguments: argparse.Namespace, width: int, layers: int, batch: int, *, takes_home: bool = False) -> None:
    """Its GPU time is not measured: the host queues the whole step at once, so the step's length alone is."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others want memory, too
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")  # so that all processes run the same kernels
    jax = served.load("jax")
    numpy = jax.numpy
    on_gpu = arguments.device == "cuda"
    if on_gpu and jax.devices()[0].platform != "gpu":
        raise RuntimeError(f"JAX sees no GPU here, only {jax.devices()[0].platform}")
    width, batch = (width, batch) if on_gpu else (64, 32)

    @jax.jit
    def forward(weights: Any, given: Any) -> Any:
        for each in weights:
            given = numpy.tanh(given @ each)
        return given

    keys = jax.random.split(jax.random.key(0), layers + 1)
    weights = [jax.random.normal(key, (width, width), numpy.bfloat16) / width**0.5 for key in keys[:-1]]
    given = jax.random.normal(keys[-1], (batch, width), numpy.bfloat16)
    results: list[Any] = []

    def request(_arrival: float) -> float:
        began = time.perf_counter()
        result = forward(weights, given)
        results[:] = [jax.device_get(result) if takes_home else result.block_until_ready()]
        return began

    def correct() -> bool:
        return bool(numpy.isfinite(results[0]).all())

    for _ in range(3):
        request(0.0)
    served.requests(request, None, correct)


if __name__ == "__main__":
    served.serve({"jax": _long, "jax-short": _short}, __doc__)
