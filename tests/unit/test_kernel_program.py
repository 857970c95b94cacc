"""The object file of the programs, as it is built here and as it may be damaged; and trying whether they load."""

from __future__ import annotations

import os
import struct
import sys

import pytest

from runlist import interpreter
from runlist.errors import NotSupportedError
from runlist.planes.interface import Capture
from runlist.planes.kernel import loading, messages, program, trial
from runlist.planes.kernel.messages import Answer
from runlist.planes.kernel.program import Program

LOAD = struct.pack("<BBhi", 0x18, 3, 0, 0) + bytes(8)
"""Two words into register 3."""


def test_maps_and_places_are_put_into_the_instructions_that_want_them() -> None:
    made = Program("one", "tracepoint", "sched/one", LOAD * 3, {0: "groups", 16: "at_file_f_inode", 32: "objects"})
    code = made.with_maps({"groups": 7, "objects": 9}, {"file_f_inode": 32})
    assert [struct.unpack_from("<BBhi", code, at) for at in (0, 16, 32)] == [
        (0x18, 0x13, 0, 7),
        (0x18, 0x03, 0, 32),  # a number, and no map
        (0x18, 0x13, 0, 9),
    ]
    assert [code[at + 8 : at + 16] for at in (0, 16, 32)] == [bytes(8)] * 3
    for maps, places in (({"groups": 7}, {"file_f_inode": 32}), ({"groups": 7, "objects": 9}, None)):
        with pytest.raises(ValueError, match=r"one wants a map (objects|at_file_f_inode)"):
            made.with_maps(maps, places)


def test_a_program_for_a_hook_has_its_name() -> None:
    assert Program("one", "lsm.s", "file_ioctl", b"", {}).hook == "file_ioctl"
    assert Program("one", "tracepoint", "sched/one", b"", {}).hook == ""


def sections(data: bytes) -> list[tuple[int, ...]]:
    """Where the head of each section of an object is, and what is in it."""
    at, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    return [(at + 64 * number, *struct.unpack_from("<IIQQQQIIQQ", data, at + 64 * number)) for number in range(count)]


def changed(data: bytes, at: int, form: str, value: int) -> bytes:
    copy = bytearray(data)
    struct.pack_into(form, copy, at, value)
    return bytes(copy)


@pytest.fixture
def data() -> bytes:
    return loading.read_object()


def test_an_object_for_another_machine_or_of_another_form_is_refused(data: bytes) -> None:
    assert len(program.read(data)[0]) == 6
    for place, value in ((0, 0), (4, 1), (5, 2)):
        with pytest.raises(ValueError, match="no object file of 64 bits, little-endian"):
            program.read(changed(data, place, "<B", value))
    with pytest.raises(ValueError, match="for another processor than the kernel's own"):
        program.read(changed(data, 18, "<H", 62))
    with pytest.raises(ValueError, match="it is damaged"):
        program.read(data[:50])


def test_an_object_that_lacks_what_it_needs_is_refused(data: bytes) -> None:
    by_kind = {kind: head for head, _, kind, *_ in sections(data)}
    with pytest.raises(ValueError, match="it has no symbols"):
        program.read(changed(data, by_kind[2] + 4, "<I", 1))
    code = next(head for head, _, kind, _, _, _, size, *_ in sections(data) if kind == 1 and size > 800)
    (size,) = struct.unpack_from("<Q", data, code + 32)
    with pytest.raises(ValueError, match="ends in the middle of an instruction"):
        program.read(changed(data, code + 32, "<Q", size - 4))
    with pytest.raises(ValueError, match="it ends too early"):
        program.read(changed(data, code + 32, "<Q", len(data)))


def test_a_relocation_of_another_kind_or_place_is_refused(data: bytes) -> None:
    places = [at for _, _, kind, _, _, at, *_ in sections(data) if kind == 9]
    programs = {number for number, (_, _, kind, *_) in enumerate(sections(data)) if kind == 1}
    of_code = next(at for _, _, kind, _, _, at, _, _, info, *_ in sections(data) if kind == 9 and info in programs)
    assert of_code in places
    at, info = struct.unpack_from("<QQ", data, of_code)
    for place, value in ((of_code + 8, info + 1), (of_code, at + 4), (of_code, at + 8), (of_code, 1 << 30)):
        with pytest.raises(ValueError, match=r"a relocation at [0-9]+ is of a kind that no map has"):
            program.read(changed(data, place, "<Q", value))


# -- trying ----------------------------------------------------------------------------------------

LOADER = """
import socket, sys
daemon = socket.socket(fileno=0)
asked = daemon.recv(1 << 16)
assert b'"budget": 0' in asked
answer = bytes.fromhex(sys.argv[1])
socket.send_fds(daemon, [answer], [1, 2])
daemon.recv(1)
"""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (Answer(), "told in 12 maps; the kernel refuses what the policy map forbids (BPF_LSM)"),
        (
            Answer(lenient="no BPF_LSM"),
            "12 maps; the daemon suspends who does what the policy map forbids, for no BPF_LSM",
        ),
    ],
)
def test_what_works_is_said_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch, said: Answer, told: str) -> None:
    words = [sys.executable, "-c", LOADER, messages.answer(said).hex()]
    monkeypatch.setattr(interpreter, "command", lambda module: words if module == trial.LOADER else [])
    before = sorted(os.listdir("/proc/self/fd"))
    assert trial.run(Capture({}, (), {})).endswith(told)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_why_it_does_not_work_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [sys.executable, "-c", LOADER, messages.answer(Answer(unable="the kernel is too old")).hex()]
    monkeypatch.setattr(interpreter, "command", lambda _: words)
    with pytest.raises(NotSupportedError, match="the kernel is too old"):
        trial.run(Capture({}, (), {}))
