"""Which entries of the policy map the daemon may go by, and which cgroup a path stands for."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.daemon.kernel.policy import entries_of
from runlist.daemon.placement.book import RuleBook
from runlist.daemon.placement.rules import Rules
from runlist.proc import cgroup
from runlist.proc.cgroup import MOUNT, number_of, unified

_CLONE_NEWCGROUP, _CLONE_NEWNS, _MS_PRIVATE = 0x02000000, 0x20000, 1 << 18 | 1 << 14


def sure(folder: Path, *rules: str) -> list[bool]:
    """Of rules by these conditions."""
    file = folder / "rules.toml"
    file.write_text("".join(f"[[rule]]\n{rule}\n" for rule in rules))
    return [entry.sure for entry in entries_of(RuleBook(Rules.load(file)))]


def test_no_entry_is_relied_on_that_may_be_found_because_one_by_cgroup_was_not_yet(tmp_path: Path) -> None:
    """A cgroup that is made, or made again, has a number that the map gets to know within a second. On hosts with the
    older hierarchies a path may be of one of those, of which the kernel's programs know nothing.
    """
    first, second = 'cgroup = "/"', 'cgroup = "/not-there"'
    assert sure(tmp_path, "user = 0", first, second) == [True, True, True]
    assert sure(tmp_path, second, first, "user = 0", 'comm = "x"') == [True, True, False, False]
    assert sure(tmp_path, first, 'cgroup = "/"\nuser = 0') == [True, True]


@pytest.mark.parametrize("path", ["/..", "/../cgroup", "/x/../..", "/../../../etc", ""])
def test_a_path_that_leads_out_of_all_cgroups_is_none(path: str) -> None:
    assert number_of(path, unified()) is None


def test_where_the_unified_hierarchy_is_not_mounted_no_cgroup_has_a_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cpu").mkdir()
    monkeypatch.setattr(cgroup, "MOUNT", tmp_path)
    assert unified() is None
    assert number_of("/", None) is None


HIERARCHY = next((path for path in (MOUNT / "unified", MOUNT) if (path / "cgroup.controllers").exists()), None)
needs_cgroups = pytest.mark.skipif(
    os.geteuid() != 0 or HIERARCHY is None, reason="needs root, and the unified hierarchy of cgroups"
)


def apart(answer: Callable[[], object], flags: int, inside: Path) -> str:
    """What a process answers that is in a cgroup, and then in namespaces of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            (inside / "cgroup.procs").write_text(str(os.getpid()))
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.unshare(_CLONE_NEWNS | flags) == 0
            assert libc.mount(None, b"/", None, _MS_PRIVATE, None) == 0
            os.write(writer, str(answer()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


@pytest.fixture
def inner() -> Iterator[Path]:
    """A cgroup in a cgroup."""
    assert HIERARCHY is not None
    outer = HIERARCHY / f"runlist-test-{os.getpid()}"
    (outer / "inner").mkdir(parents=True)
    yield outer / "inner"
    (outer / "inner").rmdir()
    outer.rmdir()


@needs_cgroups
def test_in_a_cgroup_namespace_no_number_is_taken_from_another_ones_paths(inner: Path) -> None:
    """What is mounted is the machine's: a path of the namespace would lead to another cgroup there."""

    def answer() -> object:
        return number_of("/", unified()), number_of("/inner", unified())

    assert apart(answer, 0, inner.parent) == f"({inner.parents[1].stat().st_ino}, None)"
    assert apart(answer, _CLONE_NEWCGROUP, inner.parent) == "(None, None)"


@needs_cgroups
def test_in_a_cgroup_namespace_with_its_own_mount_numbers_are_the_machines(inner: Path) -> None:
    def answer() -> object:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mount(b"none", bytes(MOUNT), b"cgroup2", 0, None) == 0
        return number_of("/", unified()), number_of("/inner", unified())

    own, below = inner.parent.stat().st_ino, inner.stat().st_ino
    assert apart(answer, _CLONE_NEWCGROUP, inner.parent) == f"({own}, {below})"
