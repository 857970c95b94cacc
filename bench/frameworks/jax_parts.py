"""JAX, with its default preallocation: gradient steps of a small network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

# Read when JAX is imported. A tuner that times kernels picks others from one process to the next.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")

import jax
import jax.numpy as jnp
import numpy as np

from bench.frameworks.part import Part, run

WIDTH, LAYERS, BATCH = 4096, 6, 4096  # long enough that the host does not decide how long a step takes
STEPS, RATE = 10, 1e-3


def _loss(weights: Any, given: Any) -> Any:
    for each in weights:
        given = jnp.tanh(given @ each)
    return jnp.mean(given**2)


def _descend(weights: Any, given: Any) -> Any:
    gradients = jax.grad(_loss)(weights, given)
    return [each - RATE * gradient for each, gradient in zip(weights, gradients, strict=True)]


_step = jax.jit(_descend)


def _training() -> Part:
    keys = jax.random.split(jax.random.key(0), LAYERS + 1)
    start = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys[:-1]]
    given = jax.random.normal(keys[-1], (BATCH, WIDTH))
    timed = [start]

    def result() -> bytes:
        weights = start
        for _ in range(STEPS):
            weights = _step(weights, given)
        return b"".join(np.asarray(each).tobytes() for each in weights)

    def step() -> None:
        timed[0] = jax.block_until_ready(_step(timed[0], given))

    return Part(result, step)


def _facts() -> Mapping[str, Any]:
    device = jax.devices()[0]
    if device.platform != "gpu":
        raise RuntimeError(f"JAX sees no GPU here, only {device.platform}")
    return {"pool": (device.memory_stats() or {}).get("bytes_limit", 0), "jax": jax.__version__}


if __name__ == "__main__":
    run({"training": _training}, _facts)
