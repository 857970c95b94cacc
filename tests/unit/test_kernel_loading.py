"""Loading the kernel plane's programs, the real object, into a kernel in memory."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from runlist.errors import NotSupportedError
from runlist.planes.interface import Capture, DriverFiles
from runlist.planes.kernel import bpf, kernel_types, loading, maps, names, program, refusing, rights
from runlist.planes.kernel.kernel_types import KernelTypes
from runlist.planes.kernel.names import Names
from tests.fixtures import bpf_in_memory
from tests.fixtures.bpf_in_memory import Bpf, Link

REQUESTS = {0xC020462A: b"a control", 0xC030462B: b"an allocation"}
CAPTURE = Capture(
    REQUESTS, (b"first", b"second"), {0x103: 3, 0x104: 0}, DriverFiles(major=195, device=os.makedev(3, 5), inode=12)
)
HOOK = "refuse_ioctl"
FIELDS = [f"{of}_{name}" for of, fields in kernel_types._FIELDS.items() for name in fields]
TYPES = KernelTypes({**{name: at for at, name in enumerate(FIELDS)}, "file_references": 40}, files=1, hook=55)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Bpf:
    found = Bpf(cpus=bpf.possible_cpus())
    monkeypatch.setattr(bpf, "_libc", found)
    monkeypatch.setattr(kernel_types, "find", lambda: TYPES)
    monkeypatch.setattr(refusing, "_refuses", lambda: True)
    return found


@pytest.fixture
def data() -> bytes:
    return loading.read_object()


@pytest.fixture
def tracing(tmp_path: Path, data: bytes) -> Iterator[int]:
    """A folder of tracepoints, which has those that the programs are for, numbered from 100 on."""
    programs, _ = program.read(data)
    for number, name in enumerate(sorted({each.tracepoint for each in programs if not each.hook}), 100):
        folder = tmp_path / "tracing" / "events" / name
        folder.mkdir(parents=True)
        (folder / "id").write_text(f"{number}\n")
    fd = os.open(tmp_path / "tracing", os.O_PATH)
    yield fd
    os.close(fd)


def number(value: int) -> bytes:
    return struct.pack("<I", value)


def test_what_is_wanted_is_in_the_maps_and_each_program_at_its_tracepoint(
    kernel: Bpf, data: bytes, tracing: int
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    loaded = loading.load(loading.Wanted(CAPTURE, 77, 1000, settle_ms=5, exempt=(1, 77)), data, tracing)
    assert list(loaded.maps) == [each.name for each in maps.MAPS]
    for each in maps.MAPS:
        made = kernel.map(each.name)
        assert (made.kind, made.key, made.value, made.entries) == (each.kind, *each.sizes, each.entries)
        assert bool(made.types[0]) is (each.kind is not bpf.MapType.RING)
    shapes, rules = kernel.map("shapes"), kernel.map("rules")
    assert shapes.content == {number(one): text.ljust(shapes.value, b"\0") for one, text in REQUESTS.items()}
    assert rules.content == {number(at): text.ljust(rules.value, b"\0") for at, text in enumerate(CAPTURE.rules)}
    assert kernel.map("watched").content == {number(0x103): number(3), number(0x104): number(0)}
    assert kernel.map("exempt").content == {number(1): number(1), number(77): number(1)}
    settings = maps.STRUCTURES["SETTINGS"].unpack(kernel.map("settings").content[number(0)])
    assert settings == {
        "own": 77, "budget": 1000, "mask": 0xFFFFFFFF & ~0x100001, "value": 0xC020462A, "loader": os.getpid(),
        "settle_ms": 5, "major": 195, "files": 1, "inode": 12, "device": 3 << 20 | 5,
    }  # fmt: skip
    programs, licence = program.read(data)
    links = [one for one in kernel.objects.values() if isinstance(one, Link)]
    tracepoints = sorted({each.tracepoint for each in programs if not each.hook})
    wanted = {each.name: 0 if each.hook else 100 + tracepoints.index(each.tracepoint) for each in programs}
    assert {one.program: 0 if one.event is None else one.event.config for one in links} == wanted
    assert {one.licence for one in kernel.all(bpf_in_memory.Program)} == {licence}
    assert (loaded.unpinned, loaded.lenient) == ("", "")
    loaded.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_people_read_these_maps_and_the_next_daemon_goes_on_with_those() -> None:
    """As docs/kernel-plane.md lists them. One owner has at most a quarter of the room."""
    inherited = {"groups", "processes", "members", "controls", "objects", "files", "owners", "swept"}
    assert {each.name for each in maps.MAPS if each.inherited} == inherited
    pinned = inherited | {"policy", "force", "refusals", "counters"}
    assert {each.name for each in maps.MAPS if each.pinned} == pinned
    room = {each.name: each.entries for each in maps.MAPS}
    of_one = {"groups": 16_384, "objects": 32_768, "files": 8_192, "processes": 2_048, "members": 2_048}
    assert {name: room[name] for name in of_one} == {name: 4 * most for name, most in of_one.items()}


def test_programs_have_the_descriptors_of_their_maps_and_the_places_of_the_kernel(
    kernel: Bpf, data: bytes, tracing: int
) -> None:
    loaded = loading.load(loading.Wanted(CAPTURE, 7, 1), data, tracing)
    programs, _ = program.read(data)
    made = {one.name: one for one in kernel.objects.values() if isinstance(one, bpf_in_memory.Program)}
    seen = 0
    for each in programs:
        code = made[each.name[:15]].instructions
        for at, name in each.maps.items():
            place = name.startswith(program.PLACE)
            wanted = TYPES.places[name.removeprefix(program.PLACE)] if place else loaded.maps[name]
            assert struct.unpack_from("<i", code, at + 4) == (wanted,)
            assert code[at + 1] >> 4 == (0 if place else 1)
            assert code[at + 1] & 0xF == each.instructions[at + 1] & 0xF  # the register that it goes to
            seen += 1
    assert seen > len(programs)
    hooks = [one for one in made.values() if one.hook]
    assert [(one.kind, one.hook) for one in hooks] == [(29, 55)]
    loaded.close()


def test_requests_that_have_nothing_in_common_are_all_looked_at(kernel: Bpf, data: bytes, tracing: int) -> None:
    for shapes, expected in (({}, (0xFFFFFFFF, 1)), ({0: b"", 0xFFFFFFFF: b""}, (0, 0)), ({6: b""}, (0xFFFFFFFF, 6))):
        loaded = loading.load(loading.Wanted(Capture(shapes, (), {}), 7, 1), data, tracing)
        settings = maps.STRUCTURES["SETTINGS"].unpack(kernel.map("settings").content[number(0)])
        assert (settings["mask"], settings["value"]) == expected
        loaded.close()


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("map", errno.EPERM, "no right to load programs into the kernel: run the daemon as root"),
        ("map", errno.ENOMEM, "the kernel makes no map groups: Cannot allocate memory"),
        ("", errno.EINVAL, "the kernel refuses the program {}: Invalid argument"),
        ("link ", errno.EINVAL, r"the kernel does not attach {} \(Invalid argument\): Linux 5.15 or later is needed"),
    ],
)
def test_what_the_kernel_does_not_do_is_said_and_nothing_is_left(
    kernel: Bpf, data: bytes, tracing: int, what: str, code: int, said: str
) -> None:
    last = [each for each in program.read(data)[0] if not each.hook][-1].name[:15]
    kernel.refuses["map groups" if what == "map" else what + last] = code
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotSupportedError, match=said.format(last)):
        loading.load(loading.Wanted(CAPTURE, 7, 1), data, tracing)
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_object_that_is_damaged_and_a_tracepoint_that_is_not_there(
    kernel: Bpf, data: bytes, tracing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = loading.Wanted(CAPTURE, 7, 1)
    with pytest.raises(NotSupportedError, match=r"cannot be read \(.*\): reinstall runlist"):
        loading.load(wanted, data[:1000], tracing)
    monkeypatch.setattr(rights, "is_locked_down", lambda: False)
    folder = next((tmp_path / "tracing" / "events").glob("*/*"))
    (folder / "id").unlink()
    name = str(folder.relative_to(tmp_path / "tracing" / "events"))
    with pytest.raises(NotSupportedError, match=rf"this kernel has no tracepoint {name} \(No such file"):
        loading.load(wanted, data, tracing)
    monkeypatch.setattr(rights, "is_locked_down", lambda: True)
    with pytest.raises(NotSupportedError, match="tells of no tracepoints: it is locked down"):
        loading.load(wanted, data, tracing)


def test_without_types_for_people_it_works(kernel: Bpf, data: bytes, tracing: int) -> None:
    kernel.refuses["types"] = errno.EINVAL
    loading.load(loading.Wanted(CAPTURE, 7, 1), data, tracing).close()
    assert kernel.map("groups").types == (0, 0, 0)


def test_an_installation_without_the_programs_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loading, "built", lambda name: tmp_path / name)
    with pytest.raises(NotSupportedError, match="No such file"):
        loading.read_object()


# -- refusing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "code", "words", "said"),
    [
        (HOOK, errno.EPERM, "", refusing.FORBIDDEN),
        (HOOK, errno.EPERM, "no", f"the kernel refuses the program {HOOK}: no"),
        (HOOK, errno.EINVAL, "", f"the kernel refuses the program {HOOK}: Invalid argument"),
        (HOOK, errno.E2BIG, "", f"the kernel does not load the program {HOOK}: Argument list too long"),
        (f"link {HOOK}", errno.EBUSY, "", f"the kernel does not attach {HOOK}: Device or resource busy"),
    ],
)
def test_why_the_kernel_refuses_nothing_is_said_and_it_is_watched_all_the_same(
    kernel: Bpf, data: bytes, tracing: int, what: str, code: int, words: str, said: str
) -> None:
    kernel.refuses[what] = code
    kernel.verifier[what] = words
    before = len(os.listdir("/proc/self/fd"))
    loaded = loading.load(loading.Wanted(CAPTURE, 7, 1), data, tracing)
    assert loaded.lenient == said
    assert len(loaded.held) == 2 * (len(program.read(data)[0]) - 1)
    loaded.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("types", "said"),
    [
        (KernelTypes(TYPES.places, 1, 0), "the kernel was built without BPF_LSM"),
        (KernelTypes(TYPES.places, 1, 55, unknown="no types"), "no types"),
    ],
)
def test_a_kernel_without_the_hook_or_whose_types_are_not_known_refuses_nothing(
    kernel: Bpf, data: bytes, tracing: int, monkeypatch: pytest.MonkeyPatch, types: KernelTypes, said: str
) -> None:
    monkeypatch.setattr(kernel_types, "find", lambda: types)
    loaded = loading.load(loading.Wanted(CAPTURE, 7, 1), data, tracing)
    assert loaded.lenient == said
    assert not [one for one in kernel.objects.values() if isinstance(one, bpf_in_memory.Program) and one.hook]
    loaded.close()


@pytest.mark.parametrize(
    ("code", "lenient"), [(errno.EPERM, ""), (errno.ENOTTY, refusing.NEVER_ASKED), (0, refusing.NEVER_ASKED)]
)
def test_a_program_that_the_kernel_never_asks_is_let_go_of(
    kernel: Bpf, data: bytes, tracing: int, monkeypatch: pytest.MonkeyPatch, code: int, lenient: str
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(bpf, "_libc", kernel)
    monkeypatch.setattr(kernel_types, "find", lambda: TYPES)

    def ioctl(fd: int, request: int) -> int:
        assert os.readlink(f"/proc/self/fd/{fd}") == "/dev/null"
        if code:
            raise OSError(code, os.strerror(code))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    before = len(os.listdir("/proc/self/fd"))
    loaded = loading.load(loading.Wanted(CAPTURE, 7, 1), data, tracing)
    assert loaded.lenient == lenient
    hooks = [fd for fd in loaded.held if kernel.of(fd) == Link(HOOK)]
    assert len(hooks) == (0 if lenient else 1)
    loaded.close()
    assert len(os.listdir("/proc/self/fd")) == before


# -- names -----------------------------------------------------------------------------------------


@pytest.fixture
def above(tmp_path: Path) -> Path:
    path = tmp_path / "bpf" / "runlist"
    path.parent.mkdir()
    return path


def test_maps_for_people_have_names_while_the_programs_run(kernel: Bpf, data: bytes, tracing: int, above: Path) -> None:
    own = Names(above, os.getpid(), "/run/a.sock")
    loaded = loading.load(loading.Wanted(CAPTURE, 7, 1, own), data, tracing)
    assert loaded.unpinned == ""
    pinned = {each.name for each in maps.MAPS if each.pinned}
    assert {each.name for each in own.folder.iterdir()} == {*pinned, "socket", "began"}
    assert os.readlink(own.folder / "socket") == "/run/a.sock"
    for name in pinned:
        assert os.fstat(kernel.pinned[str(own.folder / name)]).st_ino == os.fstat(loaded.maps[name]).st_ino
    loaded.close()
    assert not own.folder.exists()


def test_the_next_daemon_goes_on_with_what_was_left_and_with_nothing_else(
    kernel: Bpf, data: bytes, tracing: int, above: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "_is_gone", lambda folder: folder.name == "1234")
    killed = loading.load(loading.Wanted(CAPTURE, 7, 1, Names(above, 1234, "/run/a.sock")), data, tracing)
    inodes = {name: os.fstat(fd).st_ino for name, fd in killed.maps.items()}
    killed.close(leave=True)
    monkeypatch.setattr(names, "_is_gone", lambda folder: folder.name == "1234")
    loaded = loading.load(loading.Wanted(CAPTURE, 7, 1, Names(above, os.getpid(), "/run/a.sock")), data, tracing)
    same = {name for name, fd in loaded.maps.items() if os.fstat(fd).st_ino == inodes[name]}
    assert same == {each.name for each in maps.MAPS if each.inherited}
    loaded.close()
    other = loading.load(loading.Wanted(CAPTURE, 7, 1, Names(above, os.getpid(), "/run/b.sock")), data, tracing)
    assert not [name for name, fd in other.maps.items() if os.fstat(fd).st_ino == inodes[name]]
    other.close()


def test_maps_of_which_one_is_of_another_version_are_not_gone_on_with(
    kernel: Bpf, data: bytes, tracing: int, above: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "_is_gone", lambda folder: folder.name == "1234")
    killed = loading.load(loading.Wanted(CAPTURE, 7, 1, Names(above, 1234, "/run/a.sock")), data, tracing)
    inodes = {name: os.fstat(fd).st_ino for name, fd in killed.maps.items()}
    kernel.map("groups").value += 8
    killed.close(leave=True)
    before = len(os.listdir("/proc/self/fd"))
    loaded = loading.load(loading.Wanted(CAPTURE, 7, 1, Names(above, os.getpid(), "/run/a.sock")), data, tracing)
    assert all(os.fstat(fd).st_ino != inodes[name] for name, fd in loaded.maps.items())
    loaded.close()
    pins = sum(each.pinned for each in maps.MAPS)
    assert len(os.listdir("/proc/self/fd")) == before + pins  # which the kernel in memory has


def test_maps_that_get_no_names_are_said(kernel: Bpf, data: bytes, tracing: int, above: Path) -> None:
    kernel.refuses["pin"] = errno.EPERM
    own = Names(above, os.getpid(), "/run/a.sock")
    loaded = loading.load(loading.Wanted(CAPTURE, 7, 1, own), data, tracing)
    assert loaded.unpinned == f"maps have no names in {own.folder} (Operation not permitted)"
    assert loaded.names is None
    assert not own.folder.exists()
    loaded.close()
