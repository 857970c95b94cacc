"""Which entries of the policy map the daemon may go by, and which cgroup a path stands for."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.kernel.policy import PolicyMap, entries_of
from runlist.daemon.placement.book import RuleBook
from runlist.daemon.placement.rules import Rules
from runlist.daemon.requests.policy_map_view import policy_map_view
from runlist.planes.kernel.maps import STRUCTURES
from runlist.proc import cgroup
from runlist.proc.cgroup import MOUNT, number_of, unified
from runlist.protocol import kernel_autogen as protocol

_CLONE_NEWCGROUP, _CLONE_NEWNS, _MS_PRIVATE = 0x02000000, 0x20000, 1 << 18 | 1 << 14


def book(folder: Path, *rules: str) -> RuleBook:
    """Of rules by these conditions."""
    file = folder / "rules.toml"
    file.write_text("".join(f"[[rule]]\n{rule}\n" for rule in rules))
    return RuleBook(Rules.load(file))


def sure(folder: Path, *rules: str) -> list[bool]:
    return [entry.sure for entry in entries_of(book(folder, *rules))]


@pytest.mark.parametrize(
    ("conditions", "key"),
    [
        ('cgroup = "/"\nuser = 7', (42, 7, b"", protocol.BY_CGROUP | protocol.BY_USER)),
        ('cgroup = "/not-there"', (0, 0, b"", protocol.BY_CGROUP)),
        ('comm = "train"', (0, 0, b"train", protocol.BY_COMM)),
    ],
)
def test_the_key_of_an_entry_says_whom_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conditions: str, key: tuple[object, ...]
) -> None:
    monkeypatch.setattr(cgroup, "number_of", lambda path, above: 42 if path == "/" else None)
    (entry,) = entries_of(book(tmp_path, conditions))
    found = STRUCTURES["POLICY_KEY"].unpack(entry.key(3))
    comm = bytes(found["comm"]).rstrip(b"\0")  # type: ignore[arg-type]
    assert (found["cgroup"], found["user"], comm, found["which"]) == key
    assert found["generation"] == 3


def test_people_see_all_entries_in_their_order_and_who_sees_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "number_of", lambda path, above: 42 if path == "/" else None)
    rules = [
        'comm = "train"\nset = { weight = 300 }',
        'cgroup = "/"\nuser = 7\nrefuse = { groups = 8 }',
        'cgroup = "/not-there"',
        'comm = "train"\nuser = 7',
    ]
    policy = PolicyMap(book(tmp_path, *rules))
    kernel: Any = SimpleNamespace(policy=policy, works=True, lenient="", state="")
    first, second, third, last = policy_map_view(kernel).entries
    assert (first.comm, first.user, first.cgroup, first.cgroup_id, first.sets) == (
        "train",
        None,
        "",
        None,
        {"weight": "300"},
    )
    assert (second.comm, second.user, second.cgroup, second.cgroup_id, second.waits) == ("", 7, "/", 42, False)
    assert second.refuses == {"groups": "beyond 8"}
    assert (third.cgroup, third.cgroup_id, third.waits) == ("/not-there", None, True)
    assert (last.behind, first.behind) == (first.rule, "")
    assert (first.places, last.places) == (True, False)
    said = []
    for kernel.works, kernel.lenient, kernel.state in (
        (True, "", ""),
        (True, "no LSM", ""),
        (False, "", "off"),
        (False, "", ""),
    ):
        said.append(policy_map_view(kernel).enforced)
    assert said == [
        "the kernel refuses (BPF_LSM)",
        "the daemon suspends who did it; no LSM",
        "nobody: off",
        "nobody: the kernel plane is starting",
    ]


@pytest.mark.parametrize("bounded", [False, True])
def test_what_a_drop_in_gives_is_relied_on_where_no_bound_may_lower_it(tmp_path: Path, bounded: bool) -> None:
    rules = book(tmp_path, "user = 1", "user = 2" + ("\n[[bound]]\nweight = 50" if bounded else ""))
    rules.put("a.toml", Rules.of_drop_in(tmp_path / "a.toml", b"[[rule]]\nuser = 3\n[[rule]]\nuser = 4\n"))
    entries = entries_of(rules)
    assert [entry.user for entry in entries] == [3, 4, 1, 2]
    assert [entry.sure for entry in entries] == [not bounded] * 4


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
