"""Noticing processes and what they open."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runlist.proc.inotify import OpenWatch
from runlist.proc.process import descendants, descriptor_count, owner_of
from runlist.proc.words import command_line, short_command


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


GONE = 2**22 + 1  # above the kernel's largest pid


def test_opening_a_file_is_noticed_and_drained(tmp_path: Path) -> None:
    (tmp_path / "opened").touch()
    watch = OpenWatch([tmp_path / "opened"])
    assert watch.works
    assert not select.select([watch], [], [], 0)[0]
    for _ in range(3):
        (tmp_path / "opened").read_bytes()
    assert select.select([watch], [], [], 5)[0]
    watch.drain()
    assert not select.select([watch], [], [], 0)[0]
    watch.close()
    watch.close()


def test_files_that_are_not_there_do_no_harm(tmp_path: Path) -> None:
    watch = OpenWatch([tmp_path / "none"])
    watch.drain()
    watch.close()


def test_descendants_are_found_parents_first() -> None:
    script = "sleep 100 & echo $! $(sh -c 'sleep 100 >/dev/null & echo $!'); read x; kill 0"
    process = subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        direct = int(process.stdout.readline().split()[0])
        trees = descendants([process.pid, GONE])
        assert trees[process.pid][0] == process.pid
        assert direct in trees[process.pid]
        assert trees[GONE] == []
    finally:
        process.communicate("x\n")


def test_a_process_name_may_hold_anything(tmp_path: Path) -> None:
    """The name in /proc/PID/stat is in parentheses and may hold parentheses, blanks and newlines."""
    script = (
        "import ctypes, sys; ctypes.CDLL(None).prctl(15, b') 1 (\\n', 0, 0, 0); print(flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.pid in descendants([os.getpid()])[os.getpid()]
    finally:
        process.communicate()


def test_owner() -> None:
    assert owner_of(os.getpid()) == os.getuid()
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert owner_of(process.pid) is None  # a zombie
    assert owner_of(GONE) is None
    assert owner_of(-1) is None


def test_descriptors_are_counted() -> None:
    before = descriptor_count(os.getpid())
    fd = os.memfd_create("x")
    assert descriptor_count(os.getpid()) == before + 1
    os.close(fd)
    assert descriptor_count(GONE) == -1


@pytest.mark.parametrize(
    ("words", "shown"),
    [(["sleep", "5"], "sleep 5"), (["/bin/sleep", "5"], "sleep 5"), (["sleep", "5", "0" * 200], "sleep 5 " + "0" * 72)],
)
def test_commands_are_shown_short(words: list[str], shown: str) -> None:
    process = subprocess.Popen(words)
    try:
        _wait_for(
            lambda: short_command(command_line(process.pid)) == shown
        )  # the kernel shows the arguments a moment after exec
    finally:
        process.kill()
        process.wait()
    assert (command_line(GONE), short_command("")) == ("", "?")


def test_a_command_cannot_write_to_the_terminal_of_who_reads_it() -> None:
    process = subprocess.Popen(["sh", "-c", "read x", "\x1b[2J\x07\nfake row\xff"], stdin=subprocess.PIPE)
    try:
        _wait_for(lambda: "fake row" in command_line(process.pid))
        shown = command_line(process.pid)
        assert shown.isprintable()
        assert len(short_command(shown)) <= 80
    finally:
        process.communicate()
