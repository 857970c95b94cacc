"""What ended processes had goes out of the maps, and nothing else."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Set as AbstractSet

import msgspec

from bench.harness.captured import Captured
from runlist.planes.kernel.forgetting import NEEDED, OF_PROCESSES, take_out_ended
from runlist.planes.kernel.maps import STRUCTURES
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


def sweep(kernel: Captured, among: AbstractSet[int] | None = None) -> None:
    """As the daemon does."""
    maps = {name: kernel.map(name) for name in NEEDED}
    take_out_ended({name: msgspec.structs.replace(each, fd=os.dup(each.fd)) for name, each in maps.items()}, among)


def test_what_ended_processes_had() -> None:
    own, one, other = os.getpid(), ended(), ended()
    with Captured(own=own) as kernel:
        filled(kernel, [own, one, other])
        sweep(kernel)
        found = left(kernel)
    assert all(own in pids and not {one, other} & pids for pids in found.values()), found


def test_of_those_that_are_named_what_ended_had() -> None:
    own, one, other = os.getpid(), ended(), ended()
    with Captured(own=own) as kernel:
        filled(kernel, [own, one, other])
        sweep(kernel, {own, one})
        found = left(kernel)
    assert all({own, other} <= pids and one not in pids for pids in found.values()), found


def test_what_an_earlier_process_of_the_same_number_had() -> None:
    """Its number was used again before anybody looked. Of the groups of one that has a record those are its own that
    are no older.
    """
    process = subprocess.Popen(["sleep", "60"])
    pid = process.pid
    with Captured(own=os.getpid()) as kernel:

        def keys(name: str) -> list[bytes]:
            """Of this process: others are at work, too."""
            return [key for key in kernel.map(name).all_keys() if struct.unpack_from("<I", key)[0] == pid]

        def group(number: int, made_ns: int) -> bytes:
            key = struct.pack("<III", pid, 1, number)
            kernel.map("groups").put(key, bytes(STRUCTURES["GROUP"].pack(made_ns=made_ns, owner=5)))
            return key

        group(1, 100)
        kernel.map("objects").put(struct.pack("<III", pid, 1, 1), bytes(STRUCTURES["OBJECT"].pack(owner=5)))
        kernel.map("files").put(struct.pack("<Ii", pid, 7), bytes(STRUCTURES["FILE"].pack(owner=5)))
        sweep(kernel)
        without = {name: keys(name) for name in ("groups", "objects", "files")}
        gone = STRUCTURES["OWNER"].unpack(kernel.map("swept").get(struct.pack("<Q", 5)) or b"")
        kernel.map("processes").put(struct.pack("<I", pid), bytes(STRUCTURES["PROCESS"].pack(first_ns=200)))
        group(1, 100)
        own = group(2, 200)
        sweep(kernel)
        with_record = keys("groups")
        process.kill()
        process.wait()
    assert without == {"groups": [], "objects": [], "files": []}
    assert gone == {"processes": 0, "groups": 1, "objects": 1, "files": 1}
    assert with_record == [own]
