"""Files and folders that others made, own or may write, where we look for ours."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from runlist import paths, trusted
from runlist.daemon.placement.rules import Rules
from runlist.errors import NoPermissionError
from runlist.planes.process import region
from runlist.planes.process.region.format import FILE_BYTES
from runlist.policies.loader import PolicySpec, load_policy
from tests.fixtures.daemon import NOBODY, As, Commands, Daemon, Refused, needs_root
from tests.fixtures.effort import TIMES

POLICY = """from runlist.policies import Decision, Policy
class POLICY(Policy):
    summary = "mine"
    def decide(self, tasks, now):
        return Decision({})
"""
Load = Callable[[Path], object]


def load_rules(path: Path) -> object:
    return Rules.load(path)


def load_code(path: Path) -> object:
    return load_policy(PolicySpec(str(path)))


LOADERS = pytest.mark.parametrize(("load", "name"), [(load_rules, "rules.toml"), (load_code, "policy.py")])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder of ours in a folder of ours."""
    folder = tmp_path / "above" / "folder"
    folder.mkdir(parents=True)
    for name, text in {"rules.toml": "[limits]\ntasks = 2\n", "policy.py": POLICY}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    return folder


# -- what is code, or decides ----------------------------------------------------------------------


@LOADERS
def test_a_file_of_ours_is_taken(place: Path, load: Load, name: str) -> None:
    load(place / name)
    (place / "link").symlink_to(name)
    (place / "link.py").symlink_to(place / "link")
    load(place / "link.py")


@LOADERS
@pytest.mark.parametrize("mode", [0o020, 0o002])
@pytest.mark.parametrize("part", ["", ".", ".."])
def test_one_that_others_could_write_or_swap_is_refused(
    place: Path, load: Load, name: str, mode: int, part: str
) -> None:
    if os.geteuid() != 0 and mode == 0o020:
        pytest.skip("a user's own group may write what is the user's")
    part_of = {"": place / name, ".": place, "..": place.parent}[part]
    part_of.chmod(stat.S_IMODE(part_of.stat().st_mode) | mode)
    with pytest.raises(NoPermissionError, match=rf"others can write to {part_of}: .*chmod go-w"):
        load(place / name)


@needs_root
@LOADERS
@pytest.mark.parametrize("part", ["", ".", ".."])
def test_one_that_is_anothers_is_refused(place: Path, load: Load, name: str, part: str) -> None:
    part_of = {"": place / name, ".": place, "..": place.parent}[part]
    os.chown(part_of, NOBODY, NOBODY)
    with pytest.raises(NoPermissionError, match=rf"{part_of} belongs to user {NOBODY}: .*\(chown\)"):
        load(place / name)


@LOADERS
def test_a_folder_for_everybody_is_no_place_for_one(place: Path, load: Load, name: str) -> None:
    """There the sticky bit keeps our file ours; but who looks at a path sees only its name."""
    place.chmod(0o1777)
    with pytest.raises(NoPermissionError, match=f"others can put files into {place}: move"):
        load(place / name)
    below = place / "own"
    below.mkdir(mode=0o700)
    (place / name).rename(below / name)
    load(below / name)


@needs_root
@LOADERS
def test_a_link_of_somebody_else_is_not_followed(place: Path, load: Load, name: str) -> None:
    link = place.parent / f"link-{name}"
    link.symlink_to(place / name)
    os.lchown(link, NOBODY, NOBODY)
    with pytest.raises(NoPermissionError, match=f"{link} belongs to user {NOBODY}"):
        load(link)


@LOADERS
def test_links_in_a_circle_are_an_error(place: Path, load: Load, name: str) -> None:
    (place / "a.py").symlink_to("b.py")
    (place / "b.py").symlink_to("a.py")
    with pytest.raises(Exception, match=os.strerror(errno.ELOOP)):
        load(place / "a.py")


@needs_root
def test_the_daemon_of_root_refuses_a_policy_of_somebody_else(daemon: Daemon, commands: Commands, place: Path) -> None:
    os.chown(place / "policy.py", NOBODY, NOBODY)
    assert "chown" in commands.fails(3, "policy", "use", str(place / "policy.py"))
    assert daemon.client.status().policy == "priority"


@needs_root
def test_a_file_that_is_swapped_all_the_time_is_never_a_strangers(place: Path) -> None:
    """An attacker owns a folder on the way, and swaps it for a link to ours and back."""
    evil, mine, at = place.parent / "evil", place, place.parent / "at"
    evil.mkdir()
    (evil / "policy.py").write_text("raise SystemExit('evil')\n")
    for path in (evil, evil / "policy.py"):
        os.chown(path, NOBODY, NOBODY)
    at.symlink_to(mine)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for target in (evil, mine):
                (place.parent / "next").symlink_to(target)
                (place.parent / "next").rename(at)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(300 * TIMES):
            try:
                fd = trusted.open_file(at / "policy.py")
            except NoPermissionError:
                continue
            with open(fd, "rb") as file:
                assert file.read().startswith(b"from runlist")
    finally:
        stop.set()
        swapper.join()


# -- regions ---------------------------------------------------------------------------------------


def old(path: Path, content: bytes = b"") -> Path:
    path.write_bytes(content)
    os.utime(path, (0, 0))
    return path


def test_a_project_with_a_folder_of_that_name_loses_nothing(commands: Commands) -> None:
    folder = commands.folder / "regions"
    folder.mkdir(mode=0o755)
    kept = [
        old(folder / name, b"a year of work")
        for name in ("emea.csv", "1.region", "12-34", "12-0123456789ab.region", "12-0123456789ab.new", ".region-x")
    ]
    (folder / "13-0123456789ab.new").symlink_to(kept[0])
    old(folder / "14-0123456789ab.new", bytes(FILE_BYTES // 2))
    assert commands.ok("run", "--", "true") == ""
    assert {path.name for path in folder.iterdir()} == {*(path.name for path in kept), "13-0123456789ab.new"}


@needs_root
@pytest.mark.parametrize("part", ["folder", "folder/regions"])
def test_a_link_in_a_folder_that_an_attacker_made_first_is_not_followed(place: Path, part: str) -> None:
    """/tmp/runlist-UID, made by somebody else, with a link to what the victim has."""
    victims = place / "precious"
    victims.mkdir()
    left = [old(victims / "9-0123456789ab.new"), old(victims / "notes")]
    directory = place.parent / "shared" / "folder" / "regions"
    directory.parent.parent.mkdir()
    directory.parent.parent.chmod(0o1777)
    link = place.parent / "shared" / part
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(victims if part.endswith("regions") else place)
    os.lchown(link, NOBODY, NOBODY)
    if part.endswith("regions"):
        os.chown(link.parent, NOBODY, NOBODY)
    else:
        victims.rename(place / "regions")
        left = [place / "regions" / path.name for path in left]
    with pytest.raises(NoPermissionError, match=f"{NOBODY}|somebody else|a link"):
        paths.make_private(directory)
    region.sweep(directory)
    assert all(path.exists() for path in left)
    with pytest.raises(region.RegionError, match="cannot be made"):
        region.create(directory, strict=True)


@needs_root
def test_a_folder_that_is_swapped_all_the_time_is_swept_only_if_it_is_ours(place: Path) -> None:
    """Somebody owns a folder on the way to ours, and swaps what is in it."""
    theirs, victims = place.parent / "theirs", place / "precious"
    theirs.mkdir()
    victims.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    (theirs / "own").mkdir()
    kept = old(victims / "9-0123456789ab.new")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (theirs / "own").rename(theirs / "away")
            (theirs / "own").symlink_to(victims)
            (theirs / "own").unlink()
            (theirs / "away").rename(theirs / "own")

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(300 * TIMES):
            region.sweep(theirs / "own")
        assert kept.exists()
    finally:
        stop.set()
        swapper.join()


# -- advice ----------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("folder", ["/etc", "/tmp"])
def test_nobody_is_told_to_remove_what_belongs_to_all(folder: str) -> None:
    with pytest.raises(Refused, match="set RUNLIST_SOCKET to a path in a folder of your own") as refused:
        As(NOBODY)(lambda: paths.make_private(Path(folder)))
    assert refused.value.exit_code == 3
    assert "remove" not in str(refused.value)
