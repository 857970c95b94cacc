"""The benchmark of `runlist.blocks`, on processor threads: that it measures, and sees what is wrong."""

from __future__ import annotations

import pytest

from bench.benchmarks import blocks
from runlist.blocks.host import Host


def test_it_measures_and_finds_results_right(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WAVES", 12), ("BLOCK_US", 2_000.0), ("THREADS", 8), ("WIDE", 16)):
        monkeypatch.setattr(blocks, name, value)
    figures = {each.name: each for each in blocks.measure(host, turns=2, stops=12)}
    assert list(figures) == [
        "overhead unstopped, SMs full of blocks",
        "overhead unstopped, one block an SM",
        "stop by the same process, p99 of 12",
        "results after stops by the same process are bit-exact",
        "stop by another process, p99 of 12",
        "results after stops by another process are bit-exact",
    ]
    assert all(each.value == 1 for name, each in figures.items() if name.startswith("results"))
    assert all(each.value > 0 for name, each in figures.items() if name.startswith("stop"))
    assert figures["overhead unstopped, SMs full of blocks"].target == 0.03
