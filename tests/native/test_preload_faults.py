"""Bad input and broken surroundings: one line says what is wrong, and the program is not started or has no limit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.daemon import NOBODY, needs_root
from tests.native import regions
from tests.native.guests import OPTIONS, REFUSED_TO_START, SOURCES, Done, GiB, Guests, compile_c
from tests.native.regions import FILE_BYTES, Region
from tests.native.test_preload_guest import isolated, limits
from tests.native.test_preload_quota import by_hand, total

LIMIT = 3 * GiB


def assert_refused(done: Done) -> None:
    """Not started, with one line that says why."""
    assert done.code == REFUSED_TO_START, done
    assert done.out == ""
    assert done.err.startswith("runlist: "), done
    assert done.err.count("\n") == 1, done


def assert_runs_and_says_so(done: Done) -> None:
    """Started all the same, with one line that says why it is not limited."""
    assert done.code == 0, done
    assert done.err.startswith("runlist: "), done
    assert done.err.count("\n") == 1, done


MALFORMED = [
    "x", "-1", "1X", "G", "1.G.", "0x10", "1e9", "8  G", "8 ", " 8G", "99999999999999999999", "8GG", "8G\n", "٣G",
    "16E", "9" * 4000,
]  # fmt: skip


@pytest.mark.parametrize("value", MALFORMED)
def test_malformed_sizes(guests: Guests, value: str) -> None:
    assert_refused(guests.run("manners", "quiet", env=by_hand(guests, RUNLIST_MEMORY=value, RUNLIST_STRICT="1")))
    assert_runs_and_says_so(guests.run("manners", "quiet", env=by_hand(guests, RUNLIST_MEMORY=value)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RUNLIST_CAP", "-3"),
        ("RUNLIST_CAP", "thirty"),
        ("RUNLIST_CAP", "30%%"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "lots"),
        ("CUDA_DEVICE_MEMORY_LIMIT_3", "1x"),
        ("CUDA_DEVICE_SM_LIMIT", "a"),
        ("CUDA_DEVICE_SM_LIMIT_15", "%"),
    ],
)
def test_other_malformed_values(guests: Guests, name: str, value: str) -> None:
    variables = {name: value}
    done = guests.run("manners", "quiet", env=by_hand(guests, **variables, RUNLIST_STRICT="1"))
    assert_refused(done)
    assert name in done.err
    assert_runs_and_says_so(guests.run("manners", "quiet", env=by_hand(guests, **variables)))


@pytest.mark.parametrize("name", ["CUDA_OVERSUBSCRIBE", "ACTIVE_OOM_KILLER"])
def test_what_hami_has_and_we_do_not_is_said(guests: Guests, name: str) -> None:
    """It is no reason not to start."""
    env = by_hand(guests, CUDA_DEVICE_MEMORY_LIMIT="3g", RUNLIST_STRICT="1", **{name: "true"})
    done = guests.run("manners", "quiet", env=env)
    assert_runs_and_says_so(done)
    assert name in done.err
    assert total(guests, env | {"LIBCUDA_LOG_LEVEL": "0"}) == LIMIT
    assert guests.lines("manners", "quiet", env=env | {name: "false"}) == []


def test_an_empty_value_is_none(guests: Guests) -> None:
    names = ("RUNLIST_MEMORY", "RUNLIST_CAP", "RUNLIST_REGION", "RUNLIST_STRICT", "CUDA_DEVICE_MEMORY_LIMIT")
    assert guests.lines("manners", "quiet", env=by_hand(guests, **dict.fromkeys(names, ""))) == []


def test_a_limit_above_the_card(guests: Guests) -> None:
    whole = total(guests, guests.environment())
    assert total(guests, guests.environment(guests.region(whole + GiB))) == whole
    assert total(guests, guests.environment(guests.region(1 << 63))) == whole


# -- regions ---------------------------------------------------------------------------------------


def truncated(path: Path) -> None:
    Region.create(path, LIMIT)
    os.truncate(path, FILE_BYTES - 1)


def longer(path: Path) -> None:
    Region.create(path, LIMIT)
    os.truncate(path, FILE_BYTES + 1)


def empty(path: Path) -> None:
    path.touch(0o600)


def of_another_version(path: Path) -> None:
    path.touch(0o600)
    path.write_bytes(regions.header(LIMIT, version=regions.VERSION + 1).ljust(FILE_BYTES, b"\0"))


def of_another_kind(path: Path) -> None:
    path.touch(0o600)
    path.write_bytes(b"\x7fELF".ljust(FILE_BYTES, b"\0"))


def of_another_user(path: Path) -> None:
    Region.create(path, LIMIT)
    os.chown(path, 4711, 4711)


def others_may_write(path: Path) -> None:
    Region.create(path, LIMIT)
    path.chmod(0o666)


def a_link(path: Path) -> None:
    there = path.with_suffix(".there")
    Region.create(there, LIMIT)
    path.symlink_to(there)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


BROKEN: list[Callable[[Path], object]] = [
    truncated, longer, empty, of_another_version, of_another_kind, others_may_write, a_link, a_device, os.mkfifo,
    Path.mkdir, lambda path: None, pytest.param(of_another_user, marks=needs_root),
]  # fmt: skip


@pytest.mark.parametrize("make", BROKEN)
def test_a_region_that_is_none_of_ours(guests: Guests, make: Callable[[Path], object]) -> None:
    path = guests.new_path()
    make(path)
    region = Region(path)
    done = guests.run("manners", "quiet", env=guests.environment(region))
    assert_refused(done)
    assert str(path) in done.err
    env = guests.environment(region, RUNLIST_STRICT="0")
    assert_runs_and_says_so(guests.run("manners", "quiet", env=env))
    assert_runs_and_says_so(guests.run("nasty", "alone", env=env))


@needs_root
def test_the_name_of_a_device_node(guests: Guests) -> None:
    assert_refused(guests.run("manners", "quiet", env=guests.environment(Region(Path("/dev/zero")))))


def test_a_name_that_is_too_long(guests: Guests) -> None:
    for name in ("/" + "x" * 5000, "/" * 5000):
        assert_refused(guests.run("manners", "quiet", env=guests.environment(Region(Path("/x")), RUNLIST_REGION=name)))


@needs_root
@pytest.mark.parametrize("fault", ["read-only", "full"])
def test_nowhere_to_make_a_region(guests: Guests, fault: str) -> None:
    options = {"read-only": "ro", "full": "size=64k"}[fault]
    other = Path(f"/tmp/runlist-{os.geteuid()}")
    other.mkdir(mode=0o700, exist_ok=True)
    places = ("$XDG_RUNTIME_DIR", other, "/dev/shm")
    mounts = [f'mount -t tmpfs -o {options},mode=700 none "{place}"' for place in places]
    words = isolated("-m", script=" && ".join([*mounts, 'exec env LD_PRELOAD="$GUARD" "$@"']))
    env = by_hand(guests, RUNLIST_MEMORY="3G", GUARD=str(guests.library)) | {"LD_PRELOAD": ""}
    assert_refused(guests.run(*words, guests.path("manners"), "quiet", env=env | {"RUNLIST_STRICT": "1"}))
    assert_runs_and_says_so(guests.run(*words, guests.path("manners"), "quiet", env=env))


@needs_root
def test_a_region_that_is_there_for_reading_alone(guests: Guests) -> None:
    """As in a sandbox (`bwrap --ro-bind / /`). Who has a limit of its own keeps it in a region of its own."""
    region = guests.region(LIMIT)
    words = isolated("-m", script=f'mount --bind -r {region.path} {region.path} && exec env LD_PRELOAD="$GUARD" "$@"')
    env = by_hand(guests, RUNLIST_REGION=str(region.path), RUNLIST_STRICT="1", GUARD=str(guests.library))
    done = guests.run(*words, guests.path("routes"), env=env | {"LD_PRELOAD": ""})
    assert_refused(done)
    assert "is read-only here" in done.err
    own = {"RUNLIST_MEMORY": "2G", "LD_PRELOAD": ""}
    assert guests.lines(*words, guests.path("routes"), env=env | own)[0] == f"linked {2 << 30}"


@needs_root
def test_a_container_whose_root_is_read_only_has_shared_memory(guests: Guests) -> None:
    """As Kubernetes has it, which gives each pod `/dev/shm`, and those that may write nothing else no folder."""
    other = Path(f"/tmp/runlist-{os.geteuid()}")
    other.mkdir(mode=0o700, exist_ok=True)
    mounts = [f"mount -t tmpfs -o ro,mode=700 none {other}", "mount -t tmpfs -o mode=1777 none /dev/shm"]
    words = isolated("-m", script=" && ".join([*mounts, 'exec env LD_PRELOAD="$GUARD" "$@"']))
    env = by_hand(guests, RUNLIST_MEMORY="3G", RUNLIST_STRICT="1", GUARD=str(guests.library)) | {"LD_PRELOAD": ""}
    del env["XDG_RUNTIME_DIR"]
    assert guests.lines(*words, guests.path("routes"), env=env)[0] == f"linked {LIMIT}"


SPOILT = {"read-only": "mount -o remount,ro {0}", "full": "dd if=/dev/zero of={0}/all 2> /dev/null || true"}


@needs_root
@pytest.mark.parametrize("fault", SPOILT)
@pytest.mark.parametrize("place", ["runtime", "temporary"])
@pytest.mark.parametrize("named", [False, True])
def test_where_one_folder_takes_no_region_another_one_does(guests: Guests, fault: str, place: str, named: bool) -> None:
    """One that is there from before: on a full disk, or in a sandbox that may only read what the machine has."""
    env = by_hand(guests, RUNLIST_MEMORY="3G", RUNLIST_STRICT="1", GUARD=str(guests.library)) | {"LD_PRELOAD": ""}
    folder, regions_there = env["XDG_RUNTIME_DIR"], "runlist/regions"
    if place == "temporary":
        folder, regions_there = f"/tmp/runlist-{os.geteuid()}", "regions"
        Path(folder).mkdir(mode=0o700, exist_ok=True)
        del env["XDG_RUNTIME_DIR"]
    if named:  # where everybody may write
        shared = guests.new_path()
        shared.mkdir()
        shared.chmod(0o777)
        env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = str(shared / "cache")
    mounts = [
        f"mount -t tmpfs -o size=16k,mode=700 none {folder} && mkdir -p -m 700 {folder}/{regions_there}",
        SPOILT[fault].format(folder),
        "mount -t tmpfs -o mode=1777 none /dev/shm",
    ]
    words = isolated("-m", script=" && ".join([*mounts, 'exec env LD_PRELOAD="$GUARD" "$@"']))
    assert guests.lines(*words, guests.path("routes"), env=env)[0] == f"linked {LIMIT}"


@needs_root
def test_who_agreed_on_a_region_finds_it_also_when_there_is_room_again(guests: Guests) -> None:
    """Else those who come then would have the limit once more."""
    shared = guests.new_path()
    shared.mkdir()
    shared.chmod(0o777)
    env = by_hand(guests, RUNLIST_MEMORY="3G", RUNLIST_STRICT="1", GUARD=str(guests.library)) | {"LD_PRELOAD": ""}
    env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = str(shared / "cache")
    folder = env["XDG_RUNTIME_DIR"]
    other = f"/tmp/runlist-{os.geteuid()}"
    Path(other).mkdir(mode=0o700, exist_ok=True)
    steps = [
        *(f"mount -t tmpfs -o size=16k,mode=700 none {place}" for place in (folder, other)),
        "mount -t tmpfs -o mode=1777 none /dev/shm",
        'env LD_PRELOAD="$GUARD" "$@"',
        f"umount {folder} {other}",
        'env LD_PRELOAD="$GUARD" "$@"',
        f"find {folder} /dev/shm -name 'named-*'",
    ]
    lines = guests.lines(*isolated("-m", script=" && ".join(steps)), guests.path("manners"), "quiet", env=env)
    assert [Path(line).parts[:3] for line in lines] == [("/", "dev", "shm")]


def test_files_may_not_grow(guests: Guests) -> None:
    """The signal that the kernel sends for it would end the program."""
    env = by_hand(guests, RUNLIST_MEMORY="3G")
    none = limits(RLIMIT_FSIZE=4096)
    assert_refused(guests.run("manners", "quiet", env=env | {"RUNLIST_STRICT": "1"}, preexec_fn=none))
    assert_runs_and_says_so(guests.run("manners", "quiet", env=env, preexec_fn=none))


@needs_root
def test_a_runtime_directory_of_somebody_else(guests: Guests) -> None:
    env = by_hand(guests, RUNLIST_MEMORY="3G", RUNLIST_STRICT="1")
    os.chmod(env["XDG_RUNTIME_DIR"], 0o777)
    os.mkdir(Path(env["XDG_RUNTIME_DIR"]) / "runlist", 0o777)
    os.chown(Path(env["XDG_RUNTIME_DIR"]) / "runlist", 4711, 4711)
    done = guests.run("manners", "quiet", env=env)
    assert done.code in (0, REFUSED_TO_START)
    assert not list((Path(env["XDG_RUNTIME_DIR"]) / "runlist").rglob("*.region"))


# -- drivers ---------------------------------------------------------------------------------------


def test_without_cuda(guests: Guests) -> None:
    nowhere = {"LD_LIBRARY_PATH": "/nowhere"}
    bare = guests.run(str(guests.path("few/few")), env=guests.environment(**nowhere))
    assert bare.out.startswith("here ")
    for strict in ("0", "1"):
        env = guests.environment(guests.region(), RUNLIST_STRICT=strict, **nowhere)
        assert guests.run(str(guests.path("few/few")), env=env) == bare


def test_a_libcuda_that_lacks_most(guests: Guests) -> None:
    few = str(guests.path("few/libcuda.so.1").parent)
    bare = guests.run(str(guests.path("few/few")), env=guests.environment(LD_LIBRARY_PATH=few))
    assert bare.lines[:4] == ["here 1", "cuInit 1", "cuMemGetInfo_v2 1", "cuMemAlloc_v2 0"]
    for preload in (None, f"{guests.path('interposer.so')}:{guests.library}"):
        env = guests.environment(guests.region(), preload, LD_LIBRARY_PATH=few)
        done = guests.run(str(guests.path("few/few")), env=env)
        assert (done.code, done.lines[:9]) == (0, bare.lines[:9])


# -- programs that cannot be preloaded -------------------------------------------------------------


@pytest.fixture(scope="module")
def static_program(guests: Guests) -> Path:
    built = guests.folder / "static"
    sources = [str(SOURCES / name) for name in ("manners.c", "state.c")]
    done = compile_c([*OPTIONS, "-static", *sources, "-o", str(built)])
    if done.code != 0:
        pytest.skip(done.err.strip().splitlines()[-1])
    return built


def test_a_static_program_runs(guests: Guests, static_program: Path) -> None:
    guests.same(str(static_program), "state", 5, code=5)


@pytest.fixture
def setuid_program(guests: Guests) -> Iterator[Path]:
    path = guests.folder / "setuid"
    shutil.copy(guests.path("manners"), path)
    path.chmod(0o4755)
    yield path
    path.unlink()


@needs_root
def test_a_setuid_program_runs_and_trusts_nothing(guests: Guests, setuid_program: Path) -> None:
    nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    assert "users 65534 0 groups 65534 65534 session 0" in guests.same(str(setuid_program), "state", 0, **nobody).lines


@needs_root
def test_in_ld_so_preload(guests: Guests, setuid_program: Path) -> None:
    """In every program then, also in those that trust no environment."""
    config = guests.new_path()
    script = (
        'cp -a /etc "$CONFIG" && echo "$GUARD" > "$CONFIG/ld.so.preload" && mount --bind "$CONFIG" /etc && exec "$@"'
    )
    everywhere = isolated("-m", script=script)
    named = {"CONFIG": str(config), "GUARD": str(guests.library), "preload": ""}
    become = [*everywhere, "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    env = guests.environment(Region(Path("/nowhere")), **named)
    assert_refused(guests.run(*everywhere, guests.path("manners"), "quiet", env=env))
    assert guests.run(*become, setuid_program, "quiet", env=env | {"RUNLIST_REGION": ""}).code == 0
    limited = guests.environment(guests.region(LIMIT), **named)
    assert guests.lines(*everywhere, guests.path("routes"), env=limited)[0] == f"linked {LIMIT}"
