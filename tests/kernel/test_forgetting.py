"""What ended processes had goes out of the maps, and nothing else."""

from __future__ import annotations

import os
import struct
import subprocess

import msgspec

from bench.harness.captured import Captured, captured
from runlist.planes.kernel.forgetting import NEEDED, OF_PROCESSES, take_out
from tests.fixtures.kernel import needs_kernel

pytestmark = needs_kernel


def ended() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def filled(kernel: Captured, pids: list[int]) -> None:
    """Each of these processes has something in each map."""
    for name in OF_PROCESSES:
        entries = kernel.map(name)
        for pid in pids:
            entries.put(struct.pack("<I", pid).ljust(entries.key_bytes, b"\1"), bytes(entries.value_bytes))


def left(kernel: Captured) -> dict[str, set[int]]:
    return {name: {struct.unpack_from("<I", key)[0] for key in kernel.map(name).all_keys()} for name in OF_PROCESSES}


def sweep(kernel: Captured) -> None:
    """As the daemon does."""
    maps = {name: kernel.map(name) for name in NEEDED}
    take_out({name: msgspec.structs.replace(each, fd=os.dup(each.fd)) for name, each in maps.items()})


def test_what_ended_processes_had() -> None:
    own, one, other = os.getpid(), ended(), ended()
    with captured(own=own) as kernel:
        filled(kernel, [own, one, other])
        sweep(kernel)
        found = left(kernel)
    assert all(own in pids and not {one, other} & pids for pids in found.values()), found
