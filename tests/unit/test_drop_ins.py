"""Drop-ins: the folder that is watched, what counts in it, the order of the rules, and how they are found."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from runlist.daemon.placement import drop_ins
from runlist.daemon.placement.book import Concern, RuleBook
from runlist.daemon.placement.drop_ins import DropIns
from runlist.daemon.placement.reading import MAX_DROP_IN
from runlist.daemon.placement.rule import Rule
from runlist.daemon.placement.rules import Facts, Rules
from runlist.errors import UsageError
from tests.fixtures.adoption import until

ID = "0123456789abcdef" * 4
OTHER = "f" * 64


def rule(what: str, **settings: str | int) -> str:
    """The text of one rule."""
    return f"[[rule]]\n{what}\n" + "".join(f"set.{key} = {value!r}\n" for key, value in settings.items())


def of(text: str, name: str = "x.toml") -> Rules:
    return Rules.of_drop_in(Path("/run") / name, text.encode())


class Folder:
    """A folder of drop-ins, and what was told of it."""

    def __init__(self, path: Path, main: str = "") -> None:
        self.path = path
        rules = path.with_name("main.toml")
        rules.write_text(main)
        self.book = RuleBook(Rules.load(rules))
        self.changed: list[list[Rule]] = []
        self.drop_ins = DropIns(path, self.book, self.changed.append)

    def write(self, name: str, text: str | bytes) -> None:
        """As a program does it: under a hidden name first."""
        hidden = self.path / f".{name}.new"
        hidden.write_bytes(text if isinstance(text, bytes) else text.encode())
        hidden.chmod(0o600)
        hidden.rename(self.path / name)

    def where(self, facts: Facts) -> str:
        match = self.book.match(facts)
        return "" if match is None else match.where

    def reads(self, name: str, said: str) -> Callable[[], bool]:
        """Whether a file was refused, with these words."""
        return lambda: said in self.drop_ins.troubles.get(name, "")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path / "rules.d")
    yield made
    made.drop_ins.close()


def following(folder: Folder, test: Callable[[], object]) -> None:
    """Run a test while the folder is followed; no descriptor is left."""

    async def run() -> None:
        before = len(os.listdir("/proc/self/fd"))
        job = asyncio.create_task(folder.drop_ins.follow())
        try:
            await test()  # type: ignore[misc]
        finally:
            job.cancel()
            await asyncio.wait([job])
        assert job.cancelled()
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(run())


# -- the folder ------------------------------------------------------------------------------------


def test_one_that_is_too_long_is_none_though_all_that_counts_is_at_its_beginning(folder: Folder) -> None:
    async def test() -> None:
        text = rule(f"container = '{ID}'", weight=50)
        for name, length in (("fits.toml", MAX_DROP_IN), ("long.toml", MAX_DROP_IN + 1)):
            folder.write(name, (text + "\n").ljust(length, "#"))
        await until(lambda: folder.where(Facts(0, container=ID)) == "fits.toml:1")
        await until(folder.reads("long.toml", "more than 64 KiB of rules"))

    following(folder, test)


def test_what_appears_changes_and_vanishes_is_in_force(folder: Folder) -> None:
    async def test() -> None:
        folder.write("a.toml", rule(f"container = '{ID}'", weight=50))
        await until(lambda: folder.where(Facts(0, container=ID)) == "a.toml:1")
        folder.write("a.toml", "\n" + rule(f"container = '{ID}'", weight=60))
        await until(lambda: folder.where(Facts(0, container=ID)) == "a.toml:2")
        match = folder.book.match(Facts(0, container=ID))
        assert match is not None
        assert match.settings == {"weight": "60"}
        with (folder.path / "a.toml").open("a") as file:  # in its place, too
            file.write(rule("user = 4711", weight=70))
        await until(lambda: folder.where(Facts(4711)) == "a.toml:5")
        (folder.path / "a.toml").rename(folder.path / "b.toml")
        await until(lambda: folder.where(Facts(4711)) == "b.toml:5")
        assert set(folder.book.drop_ins) == {"b.toml"}
        (folder.path / "b.toml").unlink()
        await until(lambda: not folder.book)
        assert not folder.drop_ins.troubles

    following(folder, test)


def test_the_folder_is_made_for_its_user_alone(folder: Folder) -> None:
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_what_is_there_at_the_start_counts(tmp_path: Path) -> None:
    first = Folder(tmp_path / "rules.d")
    first.write("a.toml", rule("user = 1"))
    first.write("b.toml", "weight = ")
    first.drop_ins.close()
    again = Folder(tmp_path / "rules.d")
    assert again.where(Facts(1)) == "a.toml:1"
    assert list(again.drop_ins.troubles) == ["b.toml"]
    again.drop_ins.close()


@pytest.mark.parametrize("name", [".a.toml", "a.toml.new", "a", ".toml"])
def test_other_names_do_not_count(folder: Folder, name: str) -> None:
    async def test() -> None:
        (folder.path / name).write_text(rule(""))
        folder.write("z.toml", rule("user = 1"))
        await until(lambda: folder.where(Facts(1)))
        assert set(folder.book.drop_ins) == {"z.toml"}

    following(folder, test)


def test_one_that_becomes_wrong_keeps_what_it_said(folder: Folder) -> None:
    async def test() -> None:
        folder.write("a.toml", rule("user = 1", weight=50))
        await until(lambda: folder.where(Facts(1)))
        with capture_logs() as logs:
            for _ in range(3):
                folder.write("a.toml", rule("user = 1", weight=0))
                await until(folder.reads("a.toml", "a.toml:3: set.weight = 0: weight=0: a weight is 1 to 10000"))
            assert folder.where(Facts(1)) == "a.toml:1"
            folder.write("a.toml", rule("user = 2", weight=50))
            await until(lambda: folder.where(Facts(2)))
        assert len(logs) == 1
        assert not folder.drop_ins.troubles
        assert not folder.where(Facts(1))

    following(folder, test)


@pytest.mark.parametrize("table", ["[limits]\ntasks = 1\n", "[[bound]]\nweight = 1\n"])
def test_it_has_rules_alone(folder: Folder, table: str) -> None:
    async def test() -> None:
        folder.write("a.toml", table + rule("user = 1"))
        await until(folder.reads("a.toml", "a.toml:1: "))
        assert "a drop-in has rules alone: write this into the main rules file" in folder.drop_ins.troubles["a.toml"]
        (folder.path / "a.toml").unlink()
        await until(lambda: not folder.drop_ins.troubles)

    following(folder, test)


def test_only_what_changed_is_read_and_what_changes_together_is_told_together(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    class Counted(Rules):
        @classmethod
        def of_drop_in(cls, path: Path, content: bytes) -> Rules:
            read.append(path.name)
            return Rules.of_drop_in(path, content)

    monkeypatch.setattr(drop_ins, "Rules", Counted)

    async def test() -> None:
        for number in range(200):
            folder.write(f"{number}.toml", rule(f"container = '{number:064x}'", weight=50))
        await until(lambda: len(folder.book.drop_ins) == 200)
        assert sorted(read) == sorted(f"{number}.toml" for number in range(200))
        assert len(folder.changed) < 100
        folder.write("7.toml", rule(f"container = '{7:064x}'", weight=51))
        await until(lambda: read.count("7.toml") == 2)
        (folder.path / "8.toml").touch()
        await until(lambda: read.count("8.toml") == 2)
        assert len(read) == 202
        for number in range(200):
            (folder.path / f"{number}.toml").unlink()
        await until(lambda: not folder.book)
        assert not folder.book._exact
        assert not folder.book._others
        assert not folder.drop_ins._signatures
        assert len(read) == 202

    following(folder, test)


def test_a_folder_that_is_moved_or_removed_is_made_again(folder: Folder) -> None:
    async def test() -> None:
        folder.write("a.toml", rule("user = 1"))
        await until(lambda: folder.where(Facts(1)))
        folder.path.rename(folder.path.with_name("away"))
        await until(lambda: not folder.book)
        folder.write("a.toml", rule("user = 2"))
        await until(lambda: folder.where(Facts(2)))
        (folder.path / "a.toml").unlink()
        folder.path.rmdir()
        await until(lambda: not folder.book and folder.path.is_dir())
        folder.write("a.toml", rule("user = 3"))
        await until(lambda: folder.where(Facts(3)))

    following(folder, test)


def test_where_all_that_it_was_in_is_gone_nothing_is_made(folder: Folder) -> None:
    """As after an emulated GPU in a temporary folder."""

    async def test() -> None:
        folder.write("a.toml", rule("user = 1"))
        await until(lambda: folder.where(Facts(1)))
        shutil.rmtree(folder.path.parent)
        await until(lambda: bool(folder.drop_ins.troubles))
        assert not folder.path.parent.exists()
        folder.path.mkdir(mode=0o700, parents=True)
        folder.write("a.toml", rule("user = 2"))
        await until(lambda: folder.where(Facts(2)) and not folder.drop_ins.troubles)

    following(folder, test)


def test_without_inotify_it_looks_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind(drop_ins.FolderWatch):
        works = False

        def fileno(self) -> int:
            return -1

    monkeypatch.setattr(drop_ins, "FolderWatch", Blind)
    monkeypatch.setattr(drop_ins, "LOOK_EVERY_S", 0.02)
    folder = Folder(tmp_path / "rules.d")

    async def test() -> None:
        folder.write("a.toml", rule("user = 1"))
        await until(lambda: folder.where(Facts(1)))
        (folder.path / "a.toml").unlink()
        await until(lambda: not folder.book)

    following(folder, test)
    folder.drop_ins.close()


def test_there_may_be_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drop_ins, "MOST_FILES", 3)
    path = tmp_path / "rules.d"
    path.mkdir(mode=0o700)
    for name in "edcba":
        (path / f"{name}.toml").write_text(rule("user = 1"))
        (path / f"{name}.toml").chmod(0o600)
    folder = Folder(path)
    assert sorted(folder.book.drop_ins) == ["a.toml", "b.toml", "c.toml"]
    assert "more than 8192 drop-ins" in folder.drop_ins.troubles[""]
    folder.drop_ins.close()


def test_what_could_not_be_told_for_want_of_memory_is_told_later(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drop_ins, "LOOK_EVERY_S", 0.02)
    tries: list[int] = []

    def changed(rules: list[Rule]) -> None:
        tries.append(len(rules))
        if len(tries) < 3:
            raise MemoryError

    async def test() -> None:
        folder.drop_ins._changed = changed
        folder.write("a.toml", rule("user = 1") + rule("user = 2"))
        await until(lambda: len(tries) == 3)
        await asyncio.sleep(0.1)
        assert tries == [2, 2, 2]

    following(folder, test)


# -- the order, and how they are found -------------------------------------------------------------


def test_drop_ins_come_before_the_main_file_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "rules.d", rule("", weight=1))
    one = Facts(1, "python", f"/docker/{ID}", ID)
    assert folder.where(one) == "main.toml:1"
    folder.book.put("m.toml", of(rule("user = 1"), "m.toml"))
    assert folder.where(one) == "m.toml:1"
    folder.book.put("n.toml", of(rule(f"container = '{ID}'"), "n.toml"))
    assert folder.where(one) == "m.toml:1"
    folder.book.put("c.toml", of(rule("user = 2") + rule(f"cgroup = '/docker/{ID}'"), "c.toml"))
    assert folder.where(one) == "c.toml:3"
    folder.book.put("b.toml", of(rule(f"container = ['{OTHER}', '{ID}']") + rule("user = 1"), "b.toml"))
    assert folder.where(one) == "b.toml:1"
    assert folder.where(Facts(1, container=OTHER)) == "b.toml:1"
    assert folder.where(Facts(1)) == "b.toml:3"
    folder.book.put("b.toml", None)
    folder.book.put("c.toml", None)
    assert folder.where(one) == "m.toml:1"
    folder.book.put("m.toml", None)
    assert folder.where(one) == "n.toml:1"
    folder.book.put("n.toml", None)
    assert folder.where(one) == "main.toml:1"
    folder.drop_ins.close()


def test_a_rule_that_names_its_container_is_found_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand that name others none is tried."""
    book = RuleBook(Rules.none())
    for number in range(1000):
        book.put(f"{number}.toml", of(rule(f"container = '{number:064x}'\nuser = 1", weight=number + 1)))
    tried: list[str] = []
    matches = Rule.matches
    monkeypatch.setattr(Rule, "matches", lambda rule, facts: tried.append(rule.where) or matches(rule, facts))
    match = book.match(Facts(1, container=f"{77:064x}"))
    assert match is not None
    assert match.settings == {"weight": "78"}
    assert book.match(Facts(2, container=f"{77:064x}")) is None
    assert len(tried) == 2


@pytest.mark.parametrize(
    ("what", "concerned", "not_concerned"),
    [
        (f"container = '{ID}'", ("/x", ID), ("/x", OTHER)),
        ("cgroup = '/a/b'", ("/a/b", ""), ("/a/b/c", "")),
        ("cgroup = '/a/*'", ("/a/b", ""), ("/b", "")),
        (f"container = '{ID}'\ncgroup = '/a'", ("/a", ID), ("/a", OTHER)),
        (f"container = '{ID[:8]}*'\nuser = 1", ("/a", ID), ("/a", OTHER)),
        (f"container = ['{ID}', 'a*']", ("", "ab"), ("", OTHER)),
    ],
)
def test_whom_a_change_concerns(what: str, concerned: tuple[str, str], not_concerned: tuple[str, str]) -> None:
    concern = Concern(of(rule(what)).rules)
    assert concern.includes(*concerned)
    assert not concern.includes(*not_concerned)


def test_a_rule_that_asks_for_no_cgroup_may_concern_everybody() -> None:
    for what in ("user = 1", "command = '*'", "environment = { A = 'b' }", ""):
        assert Concern(of(rule(what)).rules).includes("/a", "")
    assert not Concern([]).includes("/a", ID)


# -- labels ----------------------------------------------------------------------------------------


def test_labels_come_with_the_match() -> None:
    labels = {"pod": "web-0", "namespace": "shop", "job": "4711", "a_b": "", "unit": "x" * 253}
    text = ", ".join(f'{name} = "{value}"' for name, value in labels.items())
    match = of(rule(f"labels = {{ {text} }}", weight=2)).match(Facts(0))
    assert match is not None
    assert match.labels == labels


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        ("'x'", "take a table of names"),
        ("{ Pod = 'x' }", "the name of a label"),
        ("{ pod-0 = 'x' }", "the name of a label"),
        (f"{{ {'a' * 33} = 'x' }}", "the name of a label"),
        ("{ job = 4711 }", "a label is a string"),
        ('{ pod = "a\\u001b[2J" }', "printable"),
        (f"{{ pod = '{'x' * 254}' }}", "up to 253"),
        ("{ " + ", ".join(f"{letter} = ''" for letter in "abcdefghijklmnopq") + " }", "16 labels at most"),
    ],
)
def test_labels_that_are_none(labels: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        of(rule(f"labels = {labels}"))


def test_a_drop_in_is_short() -> None:
    text = rule("user = 1")
    of(text + "#" * (MAX_DROP_IN - len(text)))
    with pytest.raises(UsageError, match="more than 64 KiB of rules"):
        of(text + "#" * (MAX_DROP_IN - len(text) + 1))
