"""A GPU through the driver API: as far as the emulated one has it, and all of it on a real one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ON_NVIDIA
from tests.fixtures import blocks_driver


def passes(part: str, environment: dict[str, str]) -> None:
    """A part of the program, in a process of its own, which loads that device's libraries."""
    words = [sys.executable, "-m", blocks_driver.__name__, part]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_memory_and_launches(device_env: dict[str, str]) -> None:
    passes("memory_and_launches", device_env)


def test_a_gpu_that_cannot_map_a_page_is_told(device_env: dict[str, str]) -> None:
    if ON_NVIDIA:
        pytest.skip("a real one can")
    passes("no_mapping", device_env)


@pytest.mark.gpu
def test_stops_on_a_gpu_leave_every_block_run_once(device_env: dict[str, str]) -> None:
    passes("stops", device_env)
