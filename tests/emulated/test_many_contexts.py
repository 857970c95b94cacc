"""A program that makes and destroys contexts for ever: it has other handles each time, and the rest stays as it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import Commands

_SCRIPT = """
import ctypes
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu

gpu = Gpu(0)
job = Accumulator(gpu, blocks=gpu.sm_count)
cuda, made = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
for _ in range(2000):  # of 138 handles each
    assert cuda.cuCtxCreate_v2(ctypes.byref(made), 0, 0) == 0
    assert cuda.cuCtxDestroy_v2(made) == 0
job.launch(7)
print(job.correct())
"""


@pytest.mark.skipif(ON_NVIDIA, reason="a context of a real GPU takes a tenth of a second")
def test_contexts_that_come_and_go_leave_what_others_have(commands: Commands) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=commands.environment, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("True\n", "")
