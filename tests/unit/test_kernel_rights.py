"""What the kernel plane's loader may do, and what it gives up."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

import pytest

from runlist.planes.kernel import rights

FORMAT = """name: sched_switch
ID: 316
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;

\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;
\tfield:__data_loc char[] name;\toffset:32;\tsize:4;\tsigned:1;

print fmt: "prev_comm=%s", REC->prev_comm
"""


class Libc:
    """Keeps what it is called with, and fails where it is to."""

    def __init__(self, **fails: int) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._fails = fails
        self.made: list[int] = []

    def prctl(self, *arguments: int) -> int:
        self.calls.append(("prctl", *arguments))
        return self._fails.get(f"prctl{arguments[0]}", 0)

    def syscall(self, number: ctypes.c_long, *arguments: object) -> int:
        name = {126: "capset", 91: "capset", 430: "fsopen", 431: "fsconfig", 432: "fsmount"}[number.value]
        plain = tuple(getattr(one, "raw", getattr(one, "value", one)) for one in arguments)
        self.calls.append((name, *plain))
        if name in self._fails:
            ctypes.set_errno(self._fails[name])
            return -1
        if name in ("fsopen", "fsmount"):
            self.made.append(os.memfd_create(name))
            return self.made[-1]
        return 0


def test_two_rights_are_kept_and_none_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = Libc()
    monkeypatch.setattr(rights, "_libc", libc)
    rights.keep_two()
    bits = 1 << 38 - 32 | 1 << 39 - 32  # CAP_PERFMON and CAP_BPF, in the upper words
    sets = struct.pack("<6I", 0, 0, 0, bits, bits, 0)  # in force, permitted, not inherited
    assert libc.calls == [
        ("prctl", 28, 3, 0, 0, 0),  # PR_SET_SECUREBITS: root has no more rights for being root
        ("prctl", 38, 1, 0, 0, 0),  # PR_SET_NO_NEW_PRIVS
        ("capset", struct.pack("<Ii", 0x20080522, 0) + b"\0", sets + b"\0"),
    ]


@pytest.mark.parametrize("fails", [{"prctl38": -1}, {"capset": errno.EPERM}])
def test_a_loader_that_cannot_give_its_rights_up_does_not_go_on(
    monkeypatch: pytest.MonkeyPatch, fails: dict[str, int]
) -> None:
    monkeypatch.setattr(rights, "_libc", Libc(**fails))
    with pytest.raises(OSError, match="no_new_privs" if "prctl38" in fails else "Operation not permitted"):
        rights.keep_two()


def test_secure_bits_are_set_where_one_may(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = Libc(prctl28=-1)
    monkeypatch.setattr(rights, "_libc", libc)
    rights.keep_two()
    assert [call[0] for call in libc.calls] == ["prctl", "prctl", "capset"]


def test_tracepoints_are_found_where_they_are_mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rights, "_libc", Libc(fsopen=errno.EPERM))
    monkeypatch.setattr(rights, "_TRACING", (str(tmp_path / "one"), str(tmp_path / "two")))
    folder = tmp_path / "two" / "events" / "sched" / "sched_switch"
    folder.mkdir(parents=True)
    (tmp_path / "one").mkdir()  # a folder where it could be mounted
    (folder / "id").write_text("316\n")
    (folder / "format").write_text(FORMAT)
    fd = rights.open_tracing()
    try:
        assert os.readlink(f"/proc/self/fd/{fd}") == str(tmp_path / "two")
        assert rights.tracepoint_id(fd, "sched/sched_switch") == 316
        found = rights.fields(fd, "sched/sched_switch")
        assert found == {"common_type": 0, "prev_comm": 8, "prev_pid": 24, "name": 32}
        with pytest.raises(FileNotFoundError):
            rights.tracepoint_id(fd, "sched/none")
    finally:
        os.close(fd)


def test_where_nobody_mounted_them_they_are_mounted_for_us_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    libc = Libc()
    monkeypatch.setattr(rights, "_libc", libc)
    monkeypatch.setattr(rights, "_TRACING", (str(tmp_path),))
    before = len(os.listdir("/proc/self/fd"))
    fd = rights.open_tracing()
    context, mount = libc.made
    assert fd == mount
    assert libc.calls == [
        ("fsopen", b"tracefs", 1),  # FSOPEN_CLOEXEC
        ("fsconfig", context, 6, None, None, 0),  # FSCONFIG_CMD_CREATE
        ("fsmount", context, 1, 0),  # FSMOUNT_CLOEXEC
    ]
    os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before
    monkeypatch.setattr(rights, "_libc", Libc(fsmount=errno.EPERM))
    with pytest.raises(PermissionError):
        rights.open_tracing()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("text", "locked"),
    [("none integrity [confidentiality]\n", True), ("none [integrity] confidentiality\n", False), (None, False)],
)
def test_a_kernel_that_is_locked_down_is_said_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, locked: bool
) -> None:
    path = tmp_path / "lockdown"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(rights, "_LOCKDOWN", path)
    assert rights.is_locked_down() is locked
    said = rights.no_tracepoint("sched/sched_switch", OSError(2, "No such file"))
    missing = "this kernel has no tracepoint sched/sched_switch (No such file)"
    assert said == (f"the kernel tells of no tracepoints: {rights.LOCKED_DOWN}" if locked else missing)


@pytest.mark.parametrize(
    ("pids", "has", "said"),
    [
        (False, {38, 39}, "runlist is in a pid namespace"),
        (True, {38}, "no right to load programs into the kernel (CAP_BPF, CAP_PERFMON)"),
        (True, {39}, "no right to load programs into the kernel (CAP_BPF, CAP_PERFMON)"),
        (True, {38, 39}, ""),
    ],
)
def test_what_hinders_a_loader_is_said(monkeypatch: pytest.MonkeyPatch, pids: bool, has: set[int], said: str) -> None:
    monkeypatch.setattr(rights, "has_the_kernels_pids", lambda: pids)
    monkeypatch.setattr(rights, "capable", has.__contains__)
    assert rights.hindered()[: len(said) or None] == said
