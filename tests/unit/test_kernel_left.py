"""What daemons leave in the kernel, for those that come after them: names of maps, and what is in them."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import msgspec
import pytest

from runlist.planes.kernel import bpf, forgetting, inheriting, maps, names
from runlist.planes.kernel.names import Names
from tests.fixtures.bpf_in_memory import Bpf

# As they are to be: taken from the code they would hold whatever it says.
FOREIGN_S = 600.0

NOBODY = 1 << 22  # no process has such a number
OURS, THEIRS = "/run/a.sock", "/run/b.sock"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Bpf:
    found = Bpf(cpus=bpf.possible_cpus())
    monkeypatch.setattr(bpf, "_libc", found)
    return found


# -- names -----------------------------------------------------------------------------------------


@pytest.fixture
def above(tmp_path: Path) -> Path:
    path = tmp_path / "runlist"
    path.mkdir(mode=0o700)
    return path


def left_by(above: Path, pid: int, socket: str, age_s: float = 0.0, began: int | None = 5, entries: int = 1) -> Path:
    """The folder of a daemon, as it stays behind."""
    folder = above / str(pid)
    folder.mkdir(mode=0o700)
    if entries:
        (folder / "socket").symlink_to(socket)
    if began is not None:
        (folder / "began").symlink_to(str(began))
    then = time.time() - age_s
    os.utime(folder, (then, then))
    return folder


def test_the_youngest_that_a_daemon_on_our_socket_left_is_ours(above: Path) -> None:
    own = Names(above, os.getpid(), OURS)
    assert own.left() is None
    left_by(above, NOBODY, OURS, age_s=50)
    youngest = left_by(above, NOBODY + 1, OURS, age_s=20)
    left_by(above, NOBODY + 2, OURS, age_s=30)
    left_by(above, NOBODY + 3, THEIRS)
    left_by(above, os.getppid(), OURS, began=names.start_of(os.getppid()))  # it lives
    (above / "notes").mkdir()
    assert own.left() == youngest
    (youngest / "socket").unlink()
    assert own.left() == above / str(NOBODY + 2)


def test_a_process_that_has_the_number_of_one_that_ended_is_another(above: Path) -> None:
    own = Names(above, os.getpid(), OURS)
    folder = left_by(above, os.getppid(), OURS, began=1)
    assert own.left() == folder
    (folder / "began").unlink()
    (folder / "began").symlink_to(str(names.start_of(os.getppid())))
    assert own.left() is None
    (folder / "began").unlink()  # it is being made
    assert own.left() is None


def test_what_a_loader_of_our_own_left_is_ours_while_we_live(above: Path) -> None:
    own = Names(above, os.getpid(), OURS)
    folder = left_by(above, os.getpid(), OURS, began=names.start_of(os.getpid()))
    assert own.left() == folder


def test_a_folder_of_anybody_else_is_neither_read_nor_made_into_ones_own(kernel: Bpf, above: Path) -> None:
    own = Names(above, os.getpid(), OURS)
    folder = left_by(above, NOBODY, OURS, age_s=2 * FOREIGN_S)
    above.chmod(0o777)
    assert own.left() is None
    own.take_stale_away()
    assert folder.is_dir()
    said = own.give({})
    assert said.startswith(f"maps have no names in {own.folder} (")
    assert not own.folder.exists()


def test_folders_of_daemons_that_are_no_more_go_but_for_what_their_successors_may_come_for(above: Path) -> None:
    own = Names(above, os.getpid(), OURS)
    ours = left_by(above, NOBODY, OURS)
    young = left_by(above, NOBODY + 1, THEIRS, age_s=FOREIGN_S - 30)
    old = left_by(above, NOBODY + 2, THEIRS, age_s=FOREIGN_S + 30)
    alive = left_by(above, os.getppid(), OURS, began=names.start_of(os.getppid()))
    own.take_stale_away()
    assert [folder.exists() for folder in (ours, young, old, alive)] == [False, True, False, True]
    assert FOREIGN_S == 600.0  # docs/kernel-plane.md: ten minutes


def test_folders_are_for_us_alone(kernel: Bpf, tmp_path: Path) -> None:
    own = Names(tmp_path / "runlist", os.getpid(), OURS)
    made = {each.name: bpf.make_map(each.name, each.kind, *each.sizes, each.entries) for each in maps.MAPS}
    assert own.give(made) == ""
    assert [os.stat(folder).st_mode & 0o777 for folder in (own.above, own.folder)] == [0o700, 0o700]
    assert os.readlink(own.folder / "began") == str(names.start_of(os.getpid()))
    assert own.give(made) == ""  # in place of what a loader of ours left
    own.take_away()
    assert not own.folder.exists()
    assert own.above.is_dir()
    own.take_away()
    for fd in made.values():
        os.close(fd)


# -- what is in them -------------------------------------------------------------------------------


class World:
    """Maps in which processes have something."""

    def __init__(self, kernel: Bpf, folder: Path) -> None:
        self.kernel, self.folder = kernel, folder
        self.fds = {}
        for each in maps.MAPS:
            if each.name in forgetting.NEEDED or each.inherited:
                self.fds[each.name] = bpf.make_map(each.name, each.kind, *each.sizes, each.entries)
                if each.pinned:
                    bpf.pin(self.fds[each.name], str(folder / each.name))

    def put(self, name: str, pid: int, structure: str = "", last: int = 1, **fields: int) -> None:
        one = self.kernel.map(name)
        key = struct.pack("<I", pid).ljust(one.key - 4, b"\0") + struct.pack("<I", last) if one.key > 4 else b""
        value = bytes(maps.STRUCTURES[structure].pack(**fields)) if structure else bytes(one.value)
        one.content[key or struct.pack("<I", pid)] = value

    def has(self, name: str) -> list[tuple[int, int]]:
        found = self.kernel.map(name).content
        return [(struct.unpack_from("<I", key)[0], struct.unpack("<I", key[-4:])[0]) for key in found]

    def opened(self) -> dict[str, bpf.Map]:
        sizes = {each.name: each.sizes for each in maps.MAPS}
        return {name: bpf.Map(os.dup(fd), *sizes[name]) for name, fd in self.fds.items()}


@pytest.fixture
def world(kernel: Bpf, tmp_path: Path) -> World:
    return World(kernel, tmp_path)


def test_of_a_process_that_lives_stays_what_is_behind_its_record_and_no_older_group(world: World) -> None:
    me = os.getpid()
    for pid in (me, os.getppid()):
        for number, made_ns in ((1, 99), (2, 100), (3, 101)):
            world.put("groups", pid, "GROUP", number, made_ns=made_ns, owner=7)
        world.put("objects", pid, "OBJECT", owner=7, made_ns=1)
        world.put("files", pid, "FILE", owner=7)
        world.put("controls", pid)
        world.put("refusals", pid)
    world.put("processes", me, "PROCESS", first_ns=100)  # the other one has no record
    before = len(os.listdir("/proc/self/fd"))
    forgetting.take_out_ended(world.opened())
    assert len(os.listdir("/proc/self/fd")) == before
    assert world.has("groups") == [(me, 2), (me, 3)]
    assert world.has("objects") == world.has("files") == [(me, 1)]
    assert {pid for pid, _ in world.has("controls")} == {pid for pid, _ in world.has("refusals")} == {me, os.getppid()}
    ((_, swept),) = world.kernel.map("swept").content.items()
    assert maps.STRUCTURES["OWNER"].unpack(swept) == {"processes": 0, "groups": 4, "objects": 1, "files": 1}


def test_what_is_gone_is_told_to_each_owner_and_the_count_goes_round(world: World) -> None:
    for number in range(3):
        world.put("groups", NOBODY, "GROUP", number, owner=7)
    world.put("objects", NOBODY, "OBJECT", owner=8)
    full = maps.STRUCTURES["OWNER"].pack(groups=(1 << 32) - 2, processes=5)
    world.kernel.map("swept").content[struct.pack("<Q", 7)] = bytes(full)
    forgetting.take_out_ended(world.opened(), {NOBODY})
    swept = {
        struct.unpack("<Q", key)[0]: maps.STRUCTURES["OWNER"].unpack(value)
        for key, value in world.kernel.map("swept").content.items()
    }
    assert swept == {
        7: {"processes": 5, "groups": 1, "objects": 0, "files": 0},
        8: {"processes": 0, "groups": 0, "objects": 1, "files": 0},
    }


def test_what_somebody_else_took_out_meanwhile_is_not_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put("groups", NOBODY, "GROUP", owner=7)
    monkeypatch.setattr(bpf.Map, "delete", lambda *_: False)
    forgetting.take_out_ended(world.opened())
    assert world.kernel.map("swept").content == {}


def test_a_map_that_cannot_be_read_keeps_the_others_from_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put("files", NOBODY, "FILE", owner=7)
    entries = bpf.Map.entries

    def failing(one: bpf.Map, of: frozenset[int] | None) -> object:
        if world.kernel.of(one.fd) is world.kernel.map("groups"):
            raise OSError(1, "not now")
        return entries(one, of)

    monkeypatch.setattr(bpf.Map, "entries", failing)
    forgetting.take_out_ended(world.opened())
    assert world.has("files") == []


def test_what_is_of_processes_whose_numbers_others_have_is_taken_out_before_programs_run(world: World) -> None:
    """One that lives since before its record was made is the same; one that began after it is another."""
    me, parent = os.getpid(), os.getppid()
    for pid, first_ns in ((me, time.monotonic_ns()), (parent, 1), (NOBODY, 1)):
        world.put("processes", pid, "PROCESS", first_ns=first_ns)
        world.put("groups", pid, "GROUP", made_ns=first_ns)
    before = len(os.listdir("/proc/self/fd"))
    inheriting.take_out_reused(world.folder)
    assert len(os.listdir("/proc/self/fd")) == before
    assert {pid for pid, _ in world.has("groups")} == {me, NOBODY}  # a look takes what ended
    assert {pid for pid, _ in world.has("processes")} == {me, NOBODY}


def test_without_all_maps_nothing_is_taken_out(world: World) -> None:
    world.put("processes", os.getppid(), "PROCESS", first_ns=1)
    (world.folder / "members").unlink()
    del world.kernel.pinned[str(world.folder / "members")]
    inheriting.take_out_reused(world.folder)
    assert {pid for pid, _ in world.has("processes")} == {os.getppid()}
    inheriting.take_out_reused(world.folder / "nowhere")


def test_maps_of_a_folder_are_taken_if_all_are_as_described(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    found = inheriting.open_left(world.folder)
    assert world.kernel.of(found["groups"]) is world.kernel.map("groups")
    assert set(found) == {each.name for each in maps.MAPS if each.inherited}
    for fd in found.values():
        os.close(fd)
    before = len(os.listdir("/proc/self/fd"))
    for other in ({"entries": 5}, {"value": "OBJECT"}, {"kind": bpf.MapType.LRU_HASH}):
        changed = [msgspec.structs.replace(each, **other) if each.name == "groups" else each for each in maps.MAPS]
        with monkeypatch.context() as patch:
            patch.setattr(maps, "MAPS", changed)
            assert inheriting.open_left(world.folder) == {}
    assert inheriting.open_left(world.folder / "nowhere") == {}
    assert len(os.listdir("/proc/self/fd")) == before
