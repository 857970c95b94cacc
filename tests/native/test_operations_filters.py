"""Clients that share SMs, under a seccomp filter for each system call that the scheduler of operations makes, on a disk
that is full, and without /proc: the program runs as it would, and what is missing is one line.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import struct
import subprocess
from collections.abc import Callable

import pytest

from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import needs_root
from tests.native.guests import Done, Guests
from tests.native.test_operations import page
from tests.native.test_preload_filters import KILL, ROOT, SAID, documented, numbers

pytestmark = pytest.mark.skipif(ON_NVIDIA, reason="a real driver makes these calls itself")

ANSWERS = (errno.EPERM, errno.ENOSYS, KILL)
IN_CLIENTS = ("core", "operations")
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_libc = ctypes.CDLL(None, use_errno=True)


def calls() -> list[str]:
    """The system calls of the scheduler, by its sources."""
    files = [file for folder in IN_CLIENTS for file in (ROOT / "native" / folder).iterdir()]
    return sorted({name for file in files for name in re.findall(r"\bSYS_(\w+)", file.read_text())} - {*SAID})


def filtering(number: int, answer: int) -> Callable[[], None]:
    """For a child before it runs a program: a filter answers a system call with an error, or ends who makes it."""
    action = 0x80000000 if answer == KILL else 0x00050000 | answer
    steps = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, action), (0x06, 0, 0, 0x7FFF0000))
    code = b"".join(struct.pack("HBBI", *step) for step in steps)

    def filter_calls() -> None:
        there = ctypes.create_string_buffer(code)
        program = ctypes.create_string_buffer(struct.pack("H6xQ", len(steps), ctypes.addressof(there)))
        assert _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        assert _libc.prctl(_SET_SECCOMP, _FILTER, program, 0, 0) == 0

    return filter_calls


def worked(done: Done) -> bool:
    """What a client's kernel wrote is there, and there is one line at most."""
    said = done.err.splitlines()
    return done.code == 0 and done.lines[1:] == ["word 5"] and (not said or [said[0][:9]] == ["runlist: "][: len(said)])


@pytest.mark.parametrize("name", calls())
def test_a_filtered_call(guests: Guests, name: str) -> None:
    number = numbers()[name]
    for answer in ANSWERS:
        path = guests.new_path()
        path.touch(0o600)

        def run(env: dict[str, str], answer: int = answer) -> Done:
            return guests.run("operations", "page", "other", env=env, preexec_fn=filtering(number, answer))

        bare = run(guests.environment(PLAIN="1"))
        if not worked(bare):
            continue  # the program cannot do without it either
        done = run(page(guests, path, 1))
        if answer == KILL and done.code == -signal.SIGSYS:
            assert name in documented()
        else:
            assert worked(done), done


@needs_root
@pytest.mark.parametrize("length", [0, None], ids=["empty", "as long as a page"])
def test_a_page_on_a_disk_that_is_full(guests: Guests, length: int | None) -> None:
    good = guests.new_path()
    good.touch(0o600)
    assert worked(guests.run("operations", "page", "other", env=page(guests, good, 1)))
    folder = guests.new_path()
    folder.mkdir()
    small = ["mount", "-t", "tmpfs", "-o", "mode=700,size=4k", "none", str(folder)]
    if subprocess.run(small, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (folder / "others").write_bytes(bytes(4096))
        path = folder / "page"
        path.touch(0o600)
        os.truncate(path, good.stat().st_size if length is None else length)
        done = guests.run("operations", "page", "other", env=page(guests, path, 1))
        assert worked(done), done
        assert done.err == f'runlist: RUNLIST_OPERATIONS="{path}" cannot be made; going on without it\n'
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@needs_root
@pytest.mark.parametrize("words", [("leaves",), ("operations", "page", "other")], ids=" ".join)
def test_a_client_without_proc(guests: Guests, words: tuple[str, ...]) -> None:
    """One whose first thread leaves ends with its last thread: it is not the library's."""
    path = guests.new_path()
    path.touch(0o600)
    program = [str(guests.path(words[0])), *words[1:]]

    def run(env: dict[str, str]) -> Done:
        hidden = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
        return guests.run(*hidden, *program, env=env)

    bare = run(guests.environment(PLAIN="1"))
    if "unshare" in bare.err or "mount" in bare.err:
        pytest.skip("nothing can be mounted here")
    done = run(page(guests, path, 1))
    assert (done.code, done.err, done.lines[-1:]) == (bare.code, bare.err, bare.lines[-1:])  # the first may be early
    assert bare.code == 0
