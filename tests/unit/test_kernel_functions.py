"""Where the functions of a library are, by libraries that are made up, byte by byte as ELF has them."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runlist.planes.kernel.functions import is_stepped_over, places

MARK = b"\xf3\x0f\x1e\xfa"


@dataclass
class Library:
    """One loaded part, at address 0x1000 from byte 0x400 of the file on, and symbols: name, type, section, address."""

    symbols: list[tuple[str, int, int, int]]
    code: bytes = bytes(0x100)
    ident: bytes = b"\x7fELF\x02\x01\x01"
    machine: int = 62
    exported: int = 11
    segments: list[tuple[int, int, int, int]] = field(default_factory=lambda: [(1, 0x400, 0x1000, 0x100)])
    """Type, place in the file, address, bytes."""
    names_bytes: int | None = None

    def write(self, path: Path) -> Path:
        names = b"\0" + b"".join(name.encode() + b"\0" for name, *_ in self.symbols)
        table = bytes(24)
        for name, type_, section, address in self.symbols:
            at = names.index(b"\0" + name.encode() + b"\0") + 1
            table += struct.pack("<IBBHQQ", at, 1 << 4 | type_, 0, section, address, 8)
        parts = b"".join(
            struct.pack("<IIQQQQQQ", type_, 5, at, address, address, size, size, 1)
            for type_, at, address, size in self.segments
        )
        behind = 64 + len(parts) + 3 * 64
        size = len(names) if self.names_bytes is None else self.names_bytes
        sections = (
            struct.pack("<IIQQQQIIQQ", 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)
            + struct.pack("<IIQQQQIIQQ", 0, self.exported, 0, 0, behind, len(table), 2, 0, 8, 24)
            + struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, behind + len(table), size, 0, 0, 1, 0)
        )
        head = struct.pack(
            "<16sHHIQQQIHHHHHH", self.ident, 3, self.machine, 1, 0, 64, 64 + len(parts), 0, 64, 56, len(self.segments),
            64, 3, 0,
        )  # fmt: skip
        whole = head + parts + sections + table + names
        path.write_bytes(whole.ljust(0x400, b"\0") + self.code)
        return path


FUNCTION, OBJECT, INDIRECT = 2, 1, 10


def test_only_functions_that_the_library_has_itself_count(tmp_path: Path) -> None:
    symbols = [
        ("here", FUNCTION, 7, 0x1010), ("data", OBJECT, 7, 0x1020), ("elsewhere", FUNCTION, 0, 0x1030),
        ("unwanted", FUNCTION, 7, 0x9999), ("chosen", INDIRECT, 7, 0x1040), ("there", FUNCTION, 1, 0x10F0),
    ]  # fmt: skip
    library = Library(symbols).write(tmp_path / "library")
    wanted = ["here", "data", "elsewhere", "chosen", "there", "absent"]
    assert places(library, wanted) == {"here": 0x410, "there": 0x4F0}
    assert places(library, []) == {}


def test_a_function_with_a_mark_is_watched_behind_it(tmp_path: Path) -> None:
    library = Library([("marked", 2, 1, 0x1008), ("plain", 2, 1, 0x1010)], code=bytes(8) + MARK + bytes(0xF4))
    assert places(library.write(tmp_path / "library"), ["marked", "plain"]) == {"marked": 0x40C, "plain": 0x410}


@pytest.mark.parametrize("machine", [62, 183])
def test_a_library_that_exports_nothing_has_none(tmp_path: Path, machine: int) -> None:
    library = Library([("here", 2, 1, 0x1010)], machine=machine, exported=2)
    assert places(library.write(tmp_path / "library"), ["here"]) == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ident": b"\x7fELG\x02\x01\x01"}, "it is no library"),
        ({"ident": b"\x7fELF\x01\x01\x01"}, "it is of 32 bits"),
        ({"ident": b"\x7fELF\x02\x02\x01"}, "it is of 32 bits"),  # or the other way round: as little of use
        ({"machine": 3}, "it is for another processor"),
        ({"names_bytes": 1 << 20}, "a table of it is not there"),
        ({"names_bytes": (64 << 20) + 1}, "a table of it has 67108865 bytes"),
        ({"names_bytes": 64 << 20}, "a table of it is not there"),
        ({"segments": [(2, 0x400, 0x1000, 0x100)]}, "nothing of it is at 0x1010"),
        ({"segments": [(1, 0x400, 0x1011, 0x100)]}, "nothing of it is at 0x1010"),
        ({"segments": [(1, 0x400, 0x1000, 0x10)]}, "nothing of it is at 0x1010"),
        ({"segments": [(1, (1 << 63) - 0x100, 0x1000, 0x100)]}, "nothing of it is at 0x1010"),
    ],
)
def test_a_file_that_is_no_library_of_use_is_said(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    library = Library([("here", 2, 1, 0x1010)], **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=said):
        places(library.write(tmp_path / "library"), ["here"])


def test_what_is_no_file_or_empty_or_ends_in_its_head_is_said(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_bytes(b"\x7fELF\x02\x01\x01")
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("empty", "it is empty"), ("short", "it is damaged"), ("pipe", "it is no file")):
        with pytest.raises(ValueError, match=said):
            places(tmp_path / name, ["one"])
    with pytest.raises(FileNotFoundError):
        places(tmp_path / "absent", ["one"])
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("first", "stepped"),
    [
        (b"\x50", False), (b"\x55", False), (b"\x57", False),  # push of rax, rbp, rdi
        (b"\x41\x50", False), (b"\x41\x57", False),  # of r8 and r15
        (b"\x90", False), (b"\xe8", False), (b"\xe9", False), (b"\xeb", False), (b"\x66\x90", False),
        (b"\x0f\x1f", False),
        (b"\x4f", True), (b"\x58", True), (b"\x41\x58", True), (b"\x41\x4f", True), (b"\x48\x89", True),
        (b"\xf3\x0f", True), (b"\x66\x91", True), (b"\xc3", True), (b"", True),
    ],
)  # fmt: skip
def test_pushes_nops_calls_and_jumps_are_done_by_the_kernel_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes, stepped: bool
) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "", "6.8", "", "x86_64")))
    (tmp_path / "library").write_bytes(b"\x50" * 3 + first)
    assert is_stepped_over(tmp_path / "library", 3) is stepped
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "", "6.8", "", "aarch64")))
    assert is_stepped_over(tmp_path / "library", 3) is False
