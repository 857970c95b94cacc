"""CuPy: products of matrices, its own kernels, and sorting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cupy
import numpy as np

from bench.frameworks.part import Part, run

SIZE, COUNT = 4096, 1 << 24


def _arrays() -> Part:
    random = np.random.default_rng(0)
    a, b = (cupy.asarray(random.standard_normal((SIZE, SIZE), dtype=np.float32)) for _ in range(2))
    c = cupy.asarray(random.standard_normal(COUNT, dtype=np.float32))

    def once() -> tuple[Any, Any]:
        product = cupy.tanh(a @ b / SIZE**0.5) * 2 + 1
        ordered = cupy.sort(c)
        cupy.cuda.Device().synchronize()
        return product, ordered

    return Part(lambda: b"".join(cupy.asnumpy(each).tobytes() for each in once()), once)


def _facts() -> Mapping[str, Any]:
    unused, total = cupy.cuda.Device().mem_info
    properties = cupy.cuda.runtime.getDeviceProperties(0)["totalGlobalMem"]
    return {"total": int(total), "free": int(unused), "properties": int(properties), "cupy": cupy.__version__}


if __name__ == "__main__":
    run({"arrays": _arrays}, _facts)
