"""What the kernel plane asks of bpf(2) and perf_event_open(2), of a kernel in memory that reads it as Linux does."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from runlist.planes.kernel import bpf
from runlist.planes.kernel.bpf import Map, MapType, ProgramType
from tests.fixtures import bpf_in_memory
from tests.fixtures.bpf_in_memory import Bpf, Event, Link

RETURN = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Bpf:
    found = Bpf()
    monkeypatch.setattr(bpf, "_libc", found)
    return found


def opened() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- maps ------------------------------------------------------------------------------------------


def test_a_map_is_made_as_it_is_described_and_says_so(kernel: Bpf) -> None:
    fd = bpf.make_map("a_name_longer_than_15", MapType.HASH, 4, 24, 100, (9, 2, 3))
    made = kernel.of(fd)
    assert made == bpf_in_memory.Map("a_name_longer_t", 1, 4, 24, 100, (9, 2, 3))
    assert bpf.describe(fd) == (MapType.HASH, 4, 24, 100)
    plain = kernel.of(bpf.make_map("plain", MapType.RING, 0, 0, 4096))
    assert plain == bpf_in_memory.Map("plain", 27, 0, 0, 4096, (0, 0, 0))


def test_entries_are_put_found_and_deleted(kernel: Bpf) -> None:
    there = Map(bpf.make_map("map", MapType.HASH, 4, 8, 2), 4, 8)
    assert there.get(b"key1") is None
    there.put(b"key1", b"value\0\0\1")
    there.put(b"key2", b"short")  # the rest is 0
    assert there.get(b"key1") == b"value\0\0\1"
    assert there.get(b"key2") == b"short\0\0\0"
    with pytest.raises(OSError, match=os.strerror(errno.E2BIG)):
        there.put(b"key3", b"")
    assert there.delete(b"key1") is True
    assert there.delete(b"key1") is False
    assert there.get(b"key1") is None
    assert list(there.all_keys()) == [b"key2"]
    assert list(there.entries()) == [(b"key2", b"short\0\0\0")]


@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 10_000])
def test_entries_are_all_there_also_where_there_are_more_than_fit_at_once(kernel: Bpf, count: int) -> None:
    there = Map(bpf.make_map("map", MapType.HASH, 2, 4, 1 << 14), 2, 4)
    wanted = [(struct.pack("<H", number), struct.pack("<I", 3 * number)) for number in range(count)]
    kernel.map("map").content.update(wanted)
    assert list(there.entries()) == wanted


def test_a_map_that_cannot_be_read_is_an_error_and_no_absence(kernel: Bpf, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Map(bpf.make_map("map", MapType.HASH, 4, 8, 2), 4, 8)

    def forbidden(*_: object) -> int:
        raise PermissionError(errno.EPERM, "")

    monkeypatch.setattr(kernel, "_element", forbidden)
    monkeypatch.setattr(kernel, "_batch", forbidden)
    for ask in (lambda: there.get(b"key1"), lambda: there.delete(b"key1"), lambda: list(there.entries())):
        with pytest.raises(PermissionError, match=os.strerror(errno.EPERM)):
            ask()


def test_what_has_a_name_is_found_by_it(kernel: Bpf, tmp_path: Path) -> None:
    fd = bpf.make_map("map", MapType.ARRAY, 4, 8, 1)
    bpf.pin(fd, str(tmp_path / "name"))
    assert kernel.of(bpf.get(str(tmp_path / "name"))) is kernel.of(fd)
    with pytest.raises(FileNotFoundError):
        bpf.get(str(tmp_path / "other"))


def test_types_are_handed_over_whole(kernel: Bpf) -> None:
    assert kernel.of(bpf.load_types(b"\x9f\xeb\0types")) == b"\x9f\xeb\0types"


def test_a_processor_whose_calls_are_not_known_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpf, "_SYS_BPF", None)
    with pytest.raises(OSError, match="this processor is not known here"):
        bpf.make_map("map", MapType.ARRAY, 4, 8, 1)


@pytest.mark.parametrize(("text", "count"), [("0\n", 1), ("0-15\n", 16), ("0,2-5\n", 6), ("0-3,7\n", 8)])
def test_as_many_processors_as_the_last_that_may_be(monkeypatch: pytest.MonkeyPatch, text: str, count: int) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: text)
    assert bpf.possible_cpus.__wrapped__() == count


# -- programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ({}, (5, 0, 0, 0)),
        ({"kind": ProgramType.PROBE}, (2, 0, 0, 0)),
        ({"kind": ProgramType.PROBE, "many": True}, (2, 0, 48, 0)),
        ({"kind": ProgramType.HOOK, "hook": 1234}, (29, 16, 27, 1234)),  # it may wait
    ],
)
def test_a_program_is_loaded_for_what_it_is_to_be_attached_to(
    kernel: Bpf, options: dict[str, object], made: tuple[int, ...]
) -> None:
    found = kernel.of(bpf.load_program("a_program_of_a_long_name", RETURN, "GPL", **options))  # type: ignore[arg-type]
    assert found == bpf_in_memory.Program("a_program_of_a_", made[0], RETURN, "GPL", *made[1:])


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EACCES])
def test_what_the_verifier_refuses_is_said_in_its_last_words(kernel: Bpf, code: int) -> None:
    kernel.refuses["tried"] = code
    kernel.verifier["tried"] = "0: (95) exit\nR0 !read_ok \n\nprocessed 1 insns\n"
    with pytest.raises(bpf.Refused) as refused:
        bpf.load_program("tried", RETURN, "GPL")
    assert refused.value.errno == code
    assert bpf.why_not("tried", refused.value) == "the kernel refuses the program tried: R0 !read_ok"


def test_what_the_kernel_refuses_before_its_verifier_is_asked_is_said_as_its_error(kernel: Bpf) -> None:
    kernel.refuses["tried"] = errno.EPERM
    with pytest.raises(bpf.Refused) as refused:
        bpf.load_program("tried", RETURN, "GPL")
    assert refused.value.log == ""
    assert bpf.why_not("tried", refused.value) == "the kernel refuses the program tried: Operation not permitted"
    kernel.refuses["tried"] = errno.E2BIG
    with pytest.raises(OSError, match="Argument list too long") as large:
        bpf.load_program("tried", RETURN, "GPL")
    assert not isinstance(large.value, bpf.Refused)
    assert bpf.why_not("tried", large.value) == "the kernel does not load the program tried: Argument list too long"


# -- attaching -------------------------------------------------------------------------------------


def test_a_program_at_a_tracepoint_sees_all_processes(kernel: Bpf) -> None:
    code = bpf.load_program("seen", RETURN, "GPL")
    event, link = bpf.attach(code, 321)
    expected = Event(kind=2, config=321, flags=1, pid=-1, cpu=0, group=-1, closes=8)  # it counts nothing itself
    assert kernel.of(event) == expected
    assert kernel.of(link) == Link("seen", expected, 0)


@pytest.mark.parametrize("at_return", [False, True])
def test_a_program_at_a_function_sees_one_process(
    kernel: Bpf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_return: bool
) -> None:
    (tmp_path / "format").mkdir()
    (tmp_path / "type").write_text("9\n")
    (tmp_path / "format" / "retprobe").write_text("config:3\n")
    monkeypatch.setattr(bpf, "_UPROBES", tmp_path)
    code = bpf.load_program("call", RETURN, "GPL", ProgramType.PROBE)
    event, link = bpf.attach_to_function(code, "/lib/one.so", 0x1234, 77, 5, at_return=at_return)
    expected = Event(9, 8 if at_return else 0, 0, 77, -1, -1, 8, "/lib/one.so", 0x1234)
    assert kernel.of(event) == expected
    assert kernel.of(link) == Link("call", expected, 5)


@pytest.mark.parametrize("at_return", [False, True])
def test_a_program_at_many_functions_sees_each_with_its_cookie(kernel: Bpf, at_return: bool) -> None:
    code = bpf.load_program("call", RETURN, "GPL", ProgramType.PROBE, many=True)
    link = bpf.attach_to_functions(code, "/lib/one.so", {0x10: 1, 0x20: 1 << 40}, 77, at_return=at_return)
    places = {0x10: 1, 0x20: 1 << 40}
    assert kernel.of(link) == Link("call", path="/lib/one.so", places=places, at_return=at_return, pid=77)


def test_a_program_at_a_hook(kernel: Bpf) -> None:
    code = bpf.load_program("asked", RETURN, "GPL", ProgramType.HOOK, hook=3)
    assert kernel.of(bpf.attach_hook(code)) == Link("asked")


def test_what_cannot_be_attached_leaves_nothing_open(kernel: Bpf) -> None:
    code = bpf.load_program("seen", RETURN, "GPL")
    before = opened()
    kernel.refuses["link seen"] = errno.EBUSY
    with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):
        bpf.attach(code, 1)
    kernel.refuses = {"perf": errno.EACCES}
    with pytest.raises(PermissionError, match=os.strerror(errno.EACCES)):
        bpf.attach(code, 1)
    assert opened() == before
