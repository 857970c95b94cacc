"""What nvidia-smi shows of the memory under a memory limit."""

from __future__ import annotations

from bench.harness.benchmark import Needs
from bench.harness.compiled import run
from bench.harness.figures import AT_MOST, MIB, Figure
from bench.harness.framework_limit import LIMIT, setups

NEEDS = Needs("nvidia", programs=("nvidia-smi",))


def measure() -> list[Figure]:
    """The largest of all GPUs' totals."""
    words = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    shown, whole = ([int(line) for line in run(words, each).split()] for each in setups().values())
    details = {"limit, MiB": LIMIT / MIB, "shown, MiB": shown, "without the library, MiB": whole}
    return [Figure("nvidia-smi: total memory shown / limit", max(shown) * MIB / LIMIT, AT_MOST, 1, details=details)]
