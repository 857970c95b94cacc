"""Programs that get around librunlist.so, by intent or without knowing: by the way they open libraries, by starting in
many threads at once, and as containers that close what they have open before they use the GPU.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack

import pytest

from tests.conftest import ON_NVIDIA
from tests.fixtures.effort import TIMES
from tests.native.guests import OUT_OF_MEMORY, GiB, Guests, MiB

LIMIT = 4 * GiB


@pytest.mark.parametrize("way", ["now", "lazy", "base"])
def test_a_plugin_that_passes_by_what_is_preloaded(guests: Guests, way: str) -> None:
    env = guests.environment(guests.region(LIMIT), LIMIT=str(LIMIT))
    lines = guests.lines("deep", guests.path("plugin.so"), way, env=env)
    assert lines == [f"constructor {OUT_OF_MEMORY}", f"total {LIMIT}", f"over {OUT_OF_MEMORY}"]


def test_a_plugin_that_its_programs_folder_leads_to(guests: Guests) -> None:
    guests.path("below/libplugin.so")
    env = guests.environment(guests.region(LIMIT), LIMIT=str(LIMIT))
    lines = guests.lines("deep", "libplugin.so", "now", env=env)
    assert lines == [f"constructor {OUT_OF_MEMORY}", f"total {LIMIT}", f"over {OUT_OF_MEMORY}"]


def test_a_plugin_that_is_not_there_is_an_error_like_any(guests: Guests) -> None:
    bare = guests.run("deep", "/nowhere/plugin.so", "now", env=guests.environment())
    guarded = guests.run("deep", "/nowhere/plugin.so", "now", env=guests.environment(guests.region(LIMIT)))
    assert guarded == bare
    assert (bare.code, "cannot open shared object" in bare.err) == (9, True)


def test_no_thread_sees_the_whole_card_however_many_begin_at_once(guests: Guests) -> None:
    for _ in range(15 * TIMES):
        assert guests.lines("deep", "herd", env=guests.environment(guests.region(LIMIT))) == [str(LIMIT)] * 8


CLOSES = """
import os, sys
os.closerange(3, 4096)
from cuda.bindings import driver as cu
cu.cuInit(0)
cu.cuCtxSetCurrent(cu.cuDevicePrimaryCtxRetain(0)[1])
error, _ = cu.cuMemAlloc(int(sys.argv[1]))
print(int(error), flush=True)
sys.stdin.readline()
"""
CONTAINERS = {
    "processes": ("--pid", "--fork", "--kill-child"),
    "processes and times": ("--pid", "--fork", "--kill-child", "--time", "--boottime", "86400"),
}


@pytest.mark.skipif(ON_NVIDIA, reason="CUDA does not start in such a namespace: error 3")
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_container_that_closed_everything_keeps_its_slot(guests: Guests, container: str) -> None:
    """Two of them, each with most of the limit: the second is refused while the first lives, and not after it ended."""
    words = ("unshare", *CONTAINERS[container])
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no such namespaces here")
    env = guests.environment(guests.region(LIMIT))
    command = [*words, sys.executable, "-c", CLOSES, str(2560 * MiB)]
    with ExitStack() as stack:

        def start() -> subprocess.Popen[str]:
            process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        def result(process: subprocess.Popen[str]) -> int:
            assert process.stdout is not None
            return int(process.stdout.readline())

        first = start()
        assert result(first) == 0
        assert result(start()) == OUT_OF_MEMORY
        first.kill()
        first.wait()
        assert result(start()) == 0
