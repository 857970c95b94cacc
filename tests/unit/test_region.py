"""Regions from outside the processes that share them: what is read, what is refused, and what nobody left behind."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runlist.errors import RunlistError
from runlist.planes.process.region import Enforced, Region, RegionError, Use, create, gpu_key, sweep
from runlist.planes.process.region.format import (
    DEVICE,
    DEVICES,
    DEVICES_AT,
    FILE_BYTES,
    HEADER,
    NO_LIMIT,
    OPERATIONS_AT,
    SLOT,
    SLOTS,
    SLOTS_AT,
    SlotState,
)
from runlist.planes.process.region.memory import Mapped
from runlist.proc.process import names_of, start_of
from tests.fixtures.daemon import NOBODY, needs_root, wait_for
from tests.fixtures.region import Made, child, made

__all__ = ["child", "made"]

GPU = "GPU-4e3db026-c5f4-1111-2222-333344445555"
OTHER = "GPU-00000000-0000-0000-0000-000000000001"


def test_a_new_region_is_complete_and_its_users_alone(made: Made) -> None:
    found = made.path.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_size, found.st_blocks * 512 >= OPERATIONS_AT) == (
        0o600,
        FILE_BYTES,
        True,
    )
    snapshot = made.region.read()
    assert (snapshot.memory, snapshot.cap, snapshot.strict, snapshot.slots, snapshot.devices) == (
        None, None, True, (), {},
    )  # fmt: skip
    assert snapshot.creator == (os.getpid(), start_of(os.getpid()))
    assert not os.get_inheritable(made.region.fileno())


def test_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        path, region = create(tmp_path, strict=False)
    finally:
        os.umask(before)
    region.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("code", "told"),
    [(errno.ENOSPC, "there is no room for it"), (errno.EDQUOT, "no room"), (errno.EIO, "Input/output")],
)
def test_what_cannot_be_made_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, told: str
) -> None:
    def fail(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(RegionError, match=told) as caught:
        create(tmp_path, strict=True)
    assert "\n" not in str(caught.value)
    assert "--no-preload" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RunlistError, match="cannot be made in"):
        create(tmp_path / "none", strict=True)


def test_limits_are_written_so_that_readers_know_them_whole(made: Made) -> None:
    made.region.set_memory(8 << 30)
    made.region.set_cap(0.3)
    fields = HEADER.unpack(os.pread(made.region.fileno(), HEADER.size, 0))
    assert fields["memory_value"] == 8 << 30
    assert fields["memory_check"] == 8 << 30 ^ NO_LIMIT
    assert fields["cap_value"] == 3000
    snapshot = made.region.read()
    assert (snapshot.memory, snapshot.cap, snapshot.limit(GPU)) == (8 << 30, 0.3, 8 << 30)
    made.region.set_memory(None)
    made.region.set_cap(None)
    assert (made.region.read().memory, made.region.read().cap) == (None, None)


@pytest.mark.parametrize(
    ("value", "check", "limit"),
    [(5, 7 ^ NO_LIMIT, 5), (7, 5 ^ NO_LIMIT, 5), (NO_LIMIT, 5 ^ NO_LIMIT, 5), (5, 0, 5), (0, NO_LIMIT, 0)],
)
def test_of_a_limit_that_is_being_changed_the_smaller_holds(made: Made, value: int, check: int, limit: int) -> None:
    made.header("memory_value", value)
    made.header("memory_check", check)
    assert made.region.read().memory == limit


def test_a_gpu_may_have_a_limit_of_its_own_until_a_new_one_is_set(made: Made) -> None:
    made.region.set_memory(100)
    made.device(0, GPU, memory_value=50, memory_check=50 ^ NO_LIMIT, refusals=3)
    made.device(1, OTHER)
    snapshot = made.region.read()
    assert (snapshot.limit(GPU), snapshot.limit(OTHER), snapshot.limit("GPU-?")) == (50, 100, 100)
    device = snapshot.device(GPU)
    assert device is not None
    assert device.refusals == 3
    made.region.set_memory(200)
    assert (made.region.read().limit(GPU), made.region.read().limit(OTHER)) == (200, 200)


@pytest.mark.parametrize(
    ("of_all", "own", "holds"),
    [
        (3000, None, (0.3, 0.3)), (3000, 2000, (0.3, 0.2)), (3000, NO_LIMIT, (0.3, None)), (3000, 5000, (0.3, 0.5)),
        (10_000, 2000, (None, 0.2)), (10_000, None, (None, None)), (NO_LIMIT, 2000, (None, None)),
    ],
)  # fmt: skip
def test_a_gpu_may_have_a_cap_of_its_own(
    made: Made, of_all: int, own: int | None, holds: tuple[float | None, float | None]
) -> None:
    made.header("cap_value", of_all)
    made.header("cap_check", of_all ^ NO_LIMIT)
    made.device(0, OTHER)
    made.device(1, GPU, **({} if own is None else {"cap_value": own, "cap_check": own ^ NO_LIMIT}))
    snapshot = made.region.read()
    assert (snapshot.cap_on(OTHER), snapshot.cap_on(GPU), snapshot.cap) == (*holds, holds[0])
    made.region.set_cap(0.4)
    assert [made.region.read().cap_on(gpu) for gpu in (GPU, OTHER, "GPU-?")] == [0.4] * 3
    made.region.set_cap(1.0)
    at = HEADER.offsets["cap_value"]
    assert made.path.read_bytes()[at : at + 8] == NO_LIMIT.to_bytes(8, "little")  # its processes keep no cap at all
    assert [made.region.read().cap_on(gpu) for gpu in (GPU, OTHER, "GPU-?")] == [None] * 3


def test_what_is_set_holds_on_gpus_that_are_met_later(made: Made) -> None:
    """Else an environment that limits single GPUs would win over it."""
    made.region.set_memory(200)
    made.region.set_cap(None)
    for index in range(DEVICES):
        at = DEVICES_AT + index * DEVICE.size
        device = DEVICE.unpack(os.pread(made.region.fileno(), DEVICE.size, at))
        assert (device["key"], device["memory_value"], device["cap_value"]) == (0, 200, NO_LIMIT)
        assert (device["memory_check"], device["cap_check"]) == (200 ^ NO_LIMIT, 0)


def test_what_the_daemon_found_past_the_slots_counts(made: Made) -> None:
    made.device(0, OTHER)
    made.device(3, GPU)
    made.region.set_unseen(3, 5 << 20)
    snapshot = made.region.read()
    assert (snapshot.used(GPU), snapshot.used(OTHER)) == (5 << 20, 0)
    made.region.set_unseen(3, NO_LIMIT)
    assert made.region.read().used(GPU) == (1 << 63) - 1
    made.region.set_unseen(3, 0)
    made.region.set_memory(1)  # the limits are something else
    assert made.region.read().used(GPU) == 0


def test_of_processes_that_nobody_knows_only_some_are_looked_at(made: Made, child: int) -> None:
    made.device(0, GPU)
    made.slot(0, child, 1)
    made.slot(1, os.getpid(), 1)
    snapshot = made.region.read()
    assert snapshot.processes((), 1).keys() == {child}
    assert snapshot.processes({os.getpid()}, 0).keys() == {os.getpid()}
    assert snapshot.processes({os.getpid()}, 1).keys() == {os.getpid(), child}


def test_use_saturates(made: Made) -> None:
    made.device(0, GPU)
    made.slot(0, os.getpid(), NO_LIMIT, NO_LIMIT, NO_LIMIT)
    snapshot = made.region.read()
    (slot,) = snapshot.slots
    assert slot.use[0].total == snapshot.used(GPU) == (1 << 63) - 1


def test_what_processes_hold(made: Made, child: int) -> None:
    made.device(1, GPU)
    made.slot(0, os.getpid(), 0, 0, 0, 0, 1000, 24, 7, 9)
    made.slot(1, child, 0, 0, 0, 0, 500)
    snapshot = made.region.read()
    mine = snapshot.slot_of(os.getpid())
    assert mine is not None
    assert mine.use[1] == Use(1000, 24)
    assert mine.enforced == Enforced.MEMORY | Enforced.QUERIES
    assert (snapshot.used(GPU), snapshot.used(OTHER)) == (1524, 0)
    assert snapshot.processes().keys() == {os.getpid(), child}
    assert snapshot.slot_of(1 << 22) is None


def test_the_dead_hold_nothing(made: Made, child: int) -> None:
    made.device(0, GPU)
    made.slot(0, child, 100, start=1)  # another process had this id
    made.slot(1, child, 100, state=SlotState.REAPED)
    made.slot(2, child, 100, state=SlotState.FREE)
    made.slot(3, 1 << 22, 100)
    made.slot(4, child, 7, start=0)  # claimed a moment ago
    snapshot = made.region.read()
    assert snapshot.used(GPU) == 7
    os.kill(child, 9)  # a zombie holds nothing, whoever waits for it
    while start_of(child) is not None:
        time.sleep(0.001)
    assert made.region.read().used(GPU) == 0


def test_those_of_another_pid_namespace_count_as_living(made: Made) -> None:
    made.device(0, GPU)
    made.slot(0, 5, 100, state=SlotState.FOREIGN, namespace=42)
    made.slot(1, 6, 10, namespace=42)
    snapshot = made.region.read()
    assert snapshot.used(GPU) == 110
    assert snapshot.processes() == {}


def test_a_process_is_known_by_its_start_and_any_of_its_ids(made: Made) -> None:
    assert names_of(os.getpid())[0] == os.getpid()
    assert names_of(1 << 22) == ()
    made.slot(0, names_of(os.getpid())[-1], 0, state=SlotState.FOREIGN, start=start_of(os.getpid()), namespace=42)
    assert made.region.read().slot_of(os.getpid()) is not None


@pytest.mark.parametrize(
    ("gpu", "key"),
    [
        (OTHER, 1 << 56), (GPU, 0x1111_F4C5_26B0_3D4E ^ 0x5555_4444_3333_2222), ("GPU-" + "0" * 32, 1),
        ("MIG-00000000-0000-0000-0000-000000000002", 2 << 56), ("GPU-1", 0), ("", 0), ("GPU-zz", 0),
    ],
)  # fmt: skip
def test_keys_of_gpus(gpu: str, key: int) -> None:
    assert gpu_key(gpu) == key


# -- what is no region ------------------------------------------------------------------------------


def adopted(path: Path, flags: int = os.O_RDWR, owner: int | None = None) -> Region:
    return Region.adopt(os.open(path, flags), os.geteuid() if owner is None else owner)


def test_a_region_is_taken_over(made: Made) -> None:
    region = adopted(made.path)
    assert region.read() == made.region.read()
    region.close()
    region.close()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("magic", 0, "another version"), ("version", 2, "its version is 2"), ("slot_bytes", 8, "its slot_bytes is 8"),
        ("device_count", 17, "another version"), ("slot_count", 1 << 20, "another version"),
        ("file_bytes", 1, "another version"),
    ],
)  # fmt: skip
def test_one_of_another_version_is_refused(made: Made, name: str, value: int, told: str) -> None:
    made.header(name, value, 4)
    with pytest.raises(RegionError, match=told):
        adopted(made.path)


def test_files_that_are_none_are_refused_and_closed(tmp_path: Path, made: Made) -> None:
    before = len(os.listdir("/proc/self/fd"))
    reader, writer = os.pipe()
    for fd in (reader, writer):
        with pytest.raises(RegionError, match="no file"):
            Region.adopt(fd, os.geteuid())
    with pytest.raises(RegionError, match="no file"):
        adopted(Path("/dev/null"))
    with pytest.raises(RegionError, match="not open for reading and writing"):
        adopted(made.path, os.O_RDONLY)
    with pytest.raises(RegionError, match="it belongs to user"):
        adopted(made.path, owner=12345)
    made.path.chmod(0o620)
    with pytest.raises(RegionError, match="others may write"):
        adopted(made.path)
    for size in (0, 100, FILE_BYTES - 1, FILE_BYTES + 1):
        (tmp_path / "x").write_bytes(bytes(size))
        with pytest.raises(RegionError, match=f"{size} bytes"):
            adopted(tmp_path / "x")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_cannot_be_looked_at_is_refused_and_closed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(os.listdir("/proc/self/fd"))

    def fail(_: int) -> os.stat_result:
        raise OSError(errno.ESTALE, "Stale file handle")

    fd = os.open(made.path, os.O_RDWR)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fail)
        with pytest.raises(RegionError, match="it cannot be read: Stale file handle"):
            Region.adopt(fd, os.geteuid())
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_disk_that_fails_is_the_regions_error(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    monkeypatch.setattr(Mapped, "read", fail)
    monkeypatch.setattr(Mapped, "write", fail)
    for use in (made.region.read, lambda: made.region.set_memory(5)):
        with pytest.raises(RegionError, match="it cannot be used: Input/output error"):
            use()


def test_one_that_is_cut_short_later_is_an_error_and_is_not_made_longer_again(made: Made) -> None:
    os.truncate(made.path, 100)
    for use in (made.region.read, lambda: made.region.set_memory(5), lambda: made.region.set_cap(None)):
        with pytest.raises(RegionError, match="100 bytes"):
            use()
    assert made.path.stat().st_size == 100


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=200
)
@given(st.lists(st.tuples(st.integers(0, SLOTS_AT + 3 * SLOT.size), st.binary(min_size=1, max_size=64)), max_size=12))
def test_whatever_is_written_into_it_is_read_or_refused(tmp_path: Path, changes: list[tuple[int, bytes]]) -> None:
    path, region = create(tmp_path, strict=True)
    try:
        os.pwrite(region.fileno(), (3).to_bytes(4, "little"), HEADER.offsets["slots_used"])
        for at, data in changes:
            os.pwrite(region.fileno(), data, at)
        try:
            snapshot = region.read()
        except RegionError:
            return
        assert len(snapshot.slots) <= SLOTS
        for gpu in (GPU, OTHER):
            assert 0 <= snapshot.used(gpu) < 1 << 63
            limit = snapshot.limit(gpu)
            assert limit is None or 0 <= limit < 1 << 63
        snapshot.slot_of(os.getpid())
        snapshot.processes()
        region.set_memory(1)
        assert region.read().limit(GPU) == 1
    finally:
        region.close()
        path.unlink()


# -- what is left behind ----------------------------------------------------------------------------


def left_over(made: Made) -> None:
    """As of a launcher that is gone."""
    made.header("creator_start", 1)


def test_regions_of_trees_that_are_gone_are_removed(tmp_path: Path, child: int) -> None:
    kept = [Made(tmp_path) for _ in range(3)]  # its launcher lives; a process of it lives; it is of another namespace
    left_over(kept[1])
    kept[1].slot(0, child)
    left_over(kept[2])
    kept[2].header("pid_namespace", 42)
    gone = Made(tmp_path)
    left_over(gone)
    gone.slot(0, 1 << 22, 100)
    sweep(tmp_path)
    assert set(tmp_path.iterdir()) == {made.path for made in kept}
    for one in (*kept, gone):
        one.region.close()


def test_a_region_that_something_in_the_background_will_want_stays(made: Made) -> None:
    left_over(made)
    environment = {**os.environ, "RUNLIST_REGION": str(made.path)}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=environment) as process:
        # The kernel shows words and environment a moment after exec.
        wait_for(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes() == b"cat\0")
        sweep(made.path.parent)
        assert made.path.exists()
    sweep(made.path.parent)
    assert not made.path.exists()


def test_what_was_never_finished_is_removed_when_it_is_old(tmp_path: Path) -> None:
    old, new, theirs, full = (f"{number}-0123456789ab.new" for number in range(1, 5))
    for name, content in ((old, b""), (new, b""), (theirs, b"notes"), (full, bytes(FILE_BYTES + 1))):
        (tmp_path / name).write_bytes(content)
    for name in (old, theirs, full):
        os.utime(tmp_path / name, (0, 0))
    os.symlink("/etc/passwd", tmp_path / "5-0123456789ab.new")
    (tmp_path / "6-0123456789ab.new").mkdir()
    os.mkfifo(tmp_path / "7-0123456789ab.region")
    before = os.listdir("/proc/self/fd")
    sweep(tmp_path)
    assert os.listdir("/proc/self/fd") == before
    assert {path.name for path in tmp_path.iterdir()} == {
        new, theirs, full, "5-0123456789ab.new", "6-0123456789ab.new", "7-0123456789ab.region",
    }  # fmt: skip


def test_what_we_did_not_make_stays(tmp_path: Path) -> None:
    """The folder may have been there, with somebody's files in it, however old."""
    names = ("eu.region", "us-east.toml", "12-34.txt", ".hidden", "1-0123456789ab.region", "7-8", "named-9")
    for name in names:
        (tmp_path / name).write_bytes(b"a year of work")
        os.utime(tmp_path / name, (0, 0))
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(names)


@needs_root
def test_the_owner_counts_and_not_who_looks(made: Made) -> None:
    os.chown(made.path, NOBODY, NOBODY)
    with pytest.raises(RegionError, match=f"user {NOBODY}, not 0"):
        adopted(made.path)
    adopted(made.path, owner=NOBODY).close()


def test_a_mapping_that_is_closed_is_none_any_more(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file:
        mapped = Mapped(file.fileno(), 4096)
    assert str(path) in Path("/proc/self/maps").read_text()
    mapped.close()
    assert str(path) not in Path("/proc/self/maps").read_text()
