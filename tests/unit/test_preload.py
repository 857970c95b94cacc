"""What is preloaded, and into what it cannot be."""

from __future__ import annotations

import os
import shutil
import struct
import sys
from pathlib import Path

import pytest

from runlist.errors import NotSupportedError
from runlist.planes.process import library as library_module
from runlist.planes.process import preload
from tests.fixtures.daemon import NOBODY, needs_root

LIBRARY = Path("/usr/lib/librunlist.so")
REGION = Path("/run/runlist/regions/1.region")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "/usr/lib/librunlist.so"),
        ("/a.so", "/usr/lib/librunlist.so:/a.so"),
        ("/a.so b.so:c.so", "/usr/lib/librunlist.so:/a.so:b.so:c.so"),
        ("/old/librunlist.so:a.so", "/usr/lib/librunlist.so:a.so"),  # never twice
    ],
)
def test_what_is_there_stays_behind_ours(before: str, after: str) -> None:
    named = preload.variables(LIBRARY, REGION, strict=True, inherited={"LD_PRELOAD": before} if before else {})
    assert named == {"LD_PRELOAD": after, "RUNLIST_REGION": str(REGION), "RUNLIST_STRICT": "1"}


def test_what_is_not_asked_for_is_not_named() -> None:
    assert preload.variables(LIBRARY, None, strict=None, inherited={}) == {"LD_PRELOAD": str(LIBRARY)}


@pytest.mark.parametrize("path", ["/a b/librunlist.so", "/a:b/librunlist.so"])
def test_a_path_that_the_linker_would_split_is_refused(path: str) -> None:
    with pytest.raises(NotSupportedError, match="takes no spaces and colons"):
        preload.variables(Path(path), REGION, strict=True, inherited={})


def test_strictness_is_told_once_there_is_a_limit() -> None:
    named = [preload.variables(LIBRARY, REGION, strict=strict, inherited={}) for strict in (None, False, True)]
    assert [one.get("RUNLIST_STRICT") for one in named] == [None, "0", "1"]


@pytest.mark.parametrize(
    ("environment", "switch"),
    [
        ({}, None),
        ({"RUNLIST_DISABLE": "1"}, "RUNLIST_DISABLE"),
        ({"RUNLIST_DISABLE": "TRUE", "CUDA_DISABLE_CONTROL": "false"}, "RUNLIST_DISABLE"),
        ({"RUNLIST_DISABLE": "off", "CUDA_DISABLE_CONTROL": "true"}, None),  # ours wins
        ({"RUNLIST_DISABLE": "", "CUDA_DISABLE_CONTROL": "yes"}, "CUDA_DISABLE_CONTROL"),
        ({"CUDA_DISABLE_CONTROL": "2"}, None),
    ],
)
def test_what_turns_the_library_off(environment: dict[str, str], switch: str | None) -> None:
    assert preload.turned_off(environment) == switch


def program(path: Path, *segments: tuple[int, bytes], bits: int = 64) -> Path:
    """An ELF file of these segments: enough of one for whoever reads its headers."""
    content_at = 64 + 56 * len(segments)
    headers, content = b"", b""
    for kind, data in segments:
        headers += struct.pack("<IIQQQQQQ", kind, 0, content_at + len(content), 0, 0, len(data), 0, 0)
        content += data
    start = b"\x7fELF" + bytes([2 if bits == 64 else 1]) + bytes(27) + struct.pack("<Q", 64) + bytes(14)
    path.write_bytes(start + struct.pack("<HH", 56, len(segments)) + bytes(6) + headers + content)
    path.chmod(0o755)
    return path


INTERPRETER = (3, b"/lib64/ld-linux-x86-64.so.2\0")


@pytest.mark.parametrize(
    ("segments", "bits", "told"),
    [
        ([(1, b""), INTERPRETER], 64, ""),
        ([(1, b"code")], 64, "is statically linked"),
        ([], 64, "is statically linked"),
        ([(3, b"/lib/ld-musl-x86_64.so.1\0")], 64, "is linked against musl"),
        ([INTERPRETER], 32, "is a 32-bit program"),
    ],
)
def test_programs(tmp_path: Path, segments: list[tuple[int, bytes]], bits: int, told: str) -> None:
    path = program(tmp_path / "p", *segments, bits=bits)
    assert preload.obstacle(str(path)) == (f"{path} {told}" if told else "")
    assert preload.obstacle("p", str(tmp_path)) == (f"{path} {told}" if told else "")


@pytest.mark.parametrize("name", ["ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "ld-2.31.so"])
def test_a_dynamic_linker_that_is_told_what_to_run_is_no_obstacle(tmp_path: Path, name: str) -> None:
    path = program(tmp_path / name, (1, b"code"))
    (tmp_path / "ld.so").symlink_to(path)
    assert preload.obstacle(str(path)) == preload.obstacle(str(tmp_path / "ld.so")) == ""
    assert "statically linked" in preload.obstacle(str(program(tmp_path / "ld-mine", (1, b"code"))))


def test_what_is_no_program_is_no_obstacle(tmp_path: Path) -> None:
    for name, content in (("text", b"echo\n"), ("empty", b""), ("bare", b"#!\n/bin/sh\n"), ("short", b"\x7fELF")):
        path = tmp_path / name
        path.write_bytes(content)
        path.chmod(0o755)
        assert preload.obstacle(str(path)) == ""
    os.mkfifo(tmp_path / "fifo", 0o755)
    assert preload.obstacle(str(tmp_path / "fifo")) == ""


def test_of_a_script_its_interpreter_counts(tmp_path: Path) -> None:
    path = program(tmp_path / "p", (1, b"code"))
    for number in range(7):
        script = tmp_path / f"script{number}"
        script.write_text(f"#! {path} -x\n")
        script.chmod(0o755)
        path = script
        if number < 4:
            assert preload.obstacle(str(script)) == f"{tmp_path / 'p'} is statically linked"
    assert preload.obstacle(str(path)) == ""  # the kernel does not follow so many either
    (tmp_path / "loop").write_text(f"#!{tmp_path / 'loop'}\n")
    (tmp_path / "loop").chmod(0o755)
    assert preload.obstacle(str(tmp_path / "loop")) == ""


def test_programs_of_this_machine() -> None:
    assert preload.obstacle(sys.executable) == ""
    assert preload.obstacle("sh") == ""
    assert preload.obstacle("/nonexistent") == ""


@pytest.mark.parametrize("size", [0, 1, 4, 5, 40, 63, 64, 100, 130])
def test_files_that_are_cut_short_are_no_trouble(tmp_path: Path, size: int) -> None:
    path = program(tmp_path / "p", (1, b"code"), INTERPRETER)
    path.write_bytes(path.read_bytes()[:size])
    preload.obstacle(str(path))


@pytest.mark.parametrize("at", range(0, 64, 4))
def test_headers_of_nonsense_are_no_trouble(tmp_path: Path, at: int) -> None:
    path = program(tmp_path / "p", (1, b"code"), INTERPRETER)
    data = bytearray(path.read_bytes())
    data[at : at + 4] = b"\xff" * 4
    path.write_bytes(data)
    preload.obstacle(str(path))


@needs_root
def test_programs_that_change_rights(tmp_path: Path) -> None:
    path = tmp_path / "p"
    shutil.copy(shutil.which("true") or "/bin/true", path)
    path.chmod(0o4755)
    assert preload.obstacle(str(path)) == ""  # to what we are anyway
    os.chown(path, NOBODY, NOBODY)
    for mode, changes in ((0o4755, True), (0o2755, True), (0o2745, False), (0o755, False)):
        path.chmod(mode)
        assert ("with other rights than yours" in preload.obstacle(str(path))) is changes


@pytest.mark.parametrize(
    ("name", "advice"), [("librunlist.so", "reinstall runlist"), ("why.bpf.o", "build it where clang or ziglang is")]
)
def test_what_an_installation_lacks_is_said_with_what_helps(
    monkeypatch: pytest.MonkeyPatch, name: str, advice: str
) -> None:
    """A build without clang has all but the kernel plane, and another one like it would have no more."""
    monkeypatch.delenv("RUNLIST_NATIVE_BUILD", raising=False)
    monkeypatch.setattr(library_module, "installed", lambda *parts: Path("/no/such", *parts))
    with pytest.raises(FileNotFoundError, match=advice):
        library_module.program(name)
