"""Drop-ins that are no good: links, pipes, others' files, huge and bad ones. What was in force stays, others are read,
and the daemon goes on.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist import paths
from runlist.daemon.placement.book import RuleBook
from runlist.daemon.placement.drop_ins import DropIns
from runlist.daemon.placement.rules import Facts, Rules
from tests.fixtures.adoption import until
from tests.fixtures.daemon import NOBODY, Commands, Daemon, needs_root, wait_for

GOOD = "[[rule]]\nuser = 1\nset.weight = 50\n"
OTHER = "[[rule]]\nuser = 2\nset.weight = 60\n"


def write(path: Path, content: bytes | str) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(0o600)


def link(path: Path) -> None:
    write(path.parent / ".real", OTHER)
    path.symlink_to(".real")


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def folder_of_that_name(path: Path) -> None:
    path.mkdir()


def of_somebody_else(path: Path) -> None:
    write(path, OTHER)
    os.chown(path, NOBODY, NOBODY)


def that_all_can_write(path: Path) -> None:
    write(path, OTHER)
    path.chmod(0o666)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 << 20)
    path.chmod(0o600)


def nested(path: Path) -> None:
    write(path, "a = " + "[" * 30_000 + "]" * 30_000)


def dotted(path: Path) -> None:
    write(path, "a" + ".a" * 30_000 + " = 1")


def dotted_in_quotes(path: Path) -> None:
    write(path, '"a"' + " . 'b'" * 8_000 + " = 1")


def without_end(path: Path) -> None:
    write(path, 'a = """' + '\\"""' * 15_000)


def no_text(path: Path) -> None:
    write(path, OTHER.encode() + b"# \xff\xfe\n")


def with_escapes(path: Path) -> None:
    write(path, '[[rule]]\nlabels = { pod = "\\u001b[2J" }\n')


def long_number(path: Path) -> None:
    write(path, f"[[rule]]\nset.weight = {'9' * 60_000}\n")


BAD = [
    link, link_to_a_device, pipe, folder_of_that_name, that_all_can_write, huge, nested, dotted,
    dotted_in_quotes, without_end, no_text, with_escapes,
    long_number, pytest.param(of_somebody_else, marks=needs_root),
]  # fmt: skip
NAMES = ["plain.toml", "\x1b[31mred\x07.toml", "a b\n.toml", os.fsdecode(b"\xff.toml")]


class Followed:
    """A folder that is followed for as long as a test runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.book = RuleBook(Rules.none())
        self.drop_ins = DropIns(folder, self.book, lambda rules: None)

    def run(self, test: Callable[[], object]) -> None:
        async def follow() -> None:
            job = asyncio.create_task(self.drop_ins.follow())
            try:
                await test()  # type: ignore[misc]
            finally:
                assert not job.done(), "the folder is followed no more"
                job.cancel()

        asyncio.run(follow())

    def weight(self, uid: int) -> str:
        match = self.book.match(Facts(uid))
        return "" if match is None else match.settings["weight"]


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    made = Followed(tmp_path / "rules.d")
    yield made
    made.drop_ins.close()


@pytest.mark.parametrize("make", BAD)
def test_one_that_is_bad_changes_nothing_and_disturbs_no_other(
    followed: Followed, make: Callable[[Path], None]
) -> None:
    bad = followed.folder / "bad.toml"

    async def test() -> None:
        write(bad, GOOD)
        await until(lambda: followed.weight(1) == "50")
        bad.rename(followed.folder / ".away")  # it is gone, and then a bad one comes
        await until(lambda: not followed.book)
        (followed.folder / ".away").rename(bad)
        await until(lambda: followed.weight(1) == "50")
        hidden = followed.folder / ".bad"
        make(hidden)
        if hidden.is_dir() and not hidden.is_symlink():
            bad.unlink()
            await until(lambda: not followed.book)
        hidden.rename(bad)
        await until(lambda: "bad.toml" in followed.drop_ins.troubles)
        said = followed.drop_ins.troubles["bad.toml"]
        assert said.isprintable()
        assert "bad.toml" in said
        assert followed.weight(1) == ("" if bad.is_dir() else "50")  # as before
        assert followed.weight(2) == ""
        write(followed.folder / "other.toml", OTHER)
        await until(lambda: followed.weight(2) == "60")
        if bad.is_dir():
            bad.rmdir()
        else:
            bad.unlink()
        await until(lambda: not followed.drop_ins.troubles)
        assert followed.weight(1) == ""

    followed.run(test)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_never_reaches_a_terminal_as_it_is(followed: Followed, name: str) -> None:
    async def test() -> None:
        write(followed.folder / name, "weight = ")
        await until(lambda: followed.drop_ins.troubles)
        assert all(said.isprintable() for said in followed.drop_ins.troubles.values())
        write(followed.folder / name, GOOD)
        await until(lambda: not followed.drop_ins.troubles)
        match = followed.book.match(Facts(1))
        assert match is not None
        assert match.where.isprintable()
        assert match.where.endswith(".toml:1")

    followed.run(test)


@pytest.mark.parametrize("mode", [0o707, 0o777, 0o1777])
def test_a_folder_that_others_can_write_is_not_read_until_they_cannot(followed: Followed, mode: int) -> None:
    async def test() -> None:
        write(followed.folder / "a.toml", GOOD)
        await until(lambda: followed.weight(1) == "50")
        followed.folder.chmod(mode)
        await until(lambda: "others can write there" in followed.drop_ins.troubles.get("", ""))
        write(followed.folder / "b.toml", OTHER)
        await asyncio.sleep(0.2)
        assert (followed.weight(1), followed.weight(2)) == ("50", "")
        followed.folder.chmod(0o700)
        await until(lambda: followed.weight(2) == "60")
        assert not followed.drop_ins.troubles

    followed.run(test)


@pytest.mark.parametrize("kind", ["link", "file", "world"])
def test_a_folder_that_is_none_keeps_no_daemon_from_starting(tmp_path: Path, kind: str) -> None:
    folder, elsewhere = tmp_path / "rules.d", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    write(elsewhere / "a.toml", GOOD)
    if kind == "link":
        folder.symlink_to(elsewhere)
    elif kind == "file":
        folder.write_text("")
    else:
        folder.mkdir()
        write(folder / "a.toml", GOOD)
        folder.chmod(0o777)
    followed = Followed(folder)
    assert not followed.book
    assert str(folder) in followed.drop_ins.troubles[""]

    async def test() -> None:
        if kind == "world":
            folder.chmod(0o700)
        else:
            folder.unlink()
            elsewhere.rename(folder)
        await until(lambda: followed.weight(1) == "50")
        assert not followed.drop_ins.troubles

    followed.run(test)
    followed.drop_ins.close()


def test_nobody_waits_while_bad_ones_are_read(followed: Followed) -> None:
    """The loop comes round between what is read in the thread."""

    async def test() -> None:
        rounds = 0
        for number in range(20):
            nested(followed.folder / f"{number}.toml")
        beginning = time.monotonic()
        while len(followed.drop_ins.troubles) < 20:
            rounds += 1
            await asyncio.sleep(0.001)
            assert time.monotonic() - beginning < 20
        assert rounds > 5

    followed.run(test)


def test_what_is_wrong_is_for_the_daemons_owner(commands: Commands, daemon: Daemon) -> None:
    folder = commands.socket.with_name("rules.d")
    assert folder.stat().st_mode & 0o777 == 0o700
    for number in range(50):
        write(folder / f"{number}.toml", "x = \x1b]0;title\x07")
    wait_for(lambda: "and 30 more: `runlist rules list`" in daemon.client.status().troubles)
    troubles = daemon.client.status().troubles
    assert len(troubles) == 21
    assert all(said.isprintable() for said in troubles)
    assert sum(bool(file.trouble) for file in daemon.client.rules().files) == 50
    assert "\x1b" not in commands.run("rules", "list").stderr
    assert folder.name == paths.DROP_INS
