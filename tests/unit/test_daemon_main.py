"""The parts of the daemon's process: what it logs, tells its starter, leaves out, and when it ends by itself."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist import log
from runlist.daemon import __main__ as module
from runlist.daemon.placement.rules import Rules
from runlist.daemon.service import ServiceManager
from runlist.daemon.undo.record import Record
from runlist.errors import NoPermissionError, RunlistError, UsageError
from runlist.proc import threads
from tests.fixtures.daemon import PATIENCE_S


def test_its_starter_is_told_once() -> None:
    reader, writer = os.pipe()
    ready = module._Ready(writer, ServiceManager({}))
    ready.say("ready")
    ready.say("again")
    with open(reader, encoding="utf-8") as pipe:
        assert pipe.read() == "ready\n"
    another, same = os.pipe()
    os.dup2(same, writer)  # the descriptor is somebody else's now
    ready.say("again")
    os.set_blocking(another, False)
    with pytest.raises(BlockingIOError):
        os.read(another, 1)
    for fd in {another, same, writer}:
        os.close(fd)
    module._Ready(None, ServiceManager({})).say("nobody asked")
    reader, writer = os.pipe()
    os.close(reader)
    module._Ready(writer, ServiceManager({})).say("nobody listens any more")


def test_what_cannot_be_logged_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[int, bytes]] = []

    def write(fd: int, data: bytes) -> int:
        said.append((fd, data))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(log.os, "write", write)
    log._StandardError().write("a name with \udcff")
    assert said == [(2, b"a name with \\udcff")]


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), MemoryError()])
def test_a_round_without_descriptors_or_memory_is_left_out(error: Exception) -> None:
    with module._going_on():
        raise error


@pytest.mark.parametrize("error", [OSError(errno.EBADF, "Bad file descriptor"), ValueError("a mistake")])
def test_other_errors_are_not_passed_over(error: Exception) -> None:
    with pytest.raises(type(error)), module._going_on():
        raise error


def test_the_named_rules_or_the_usual_ones_where_there_are_any(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = tmp_path / "usual.toml"
    monkeypatch.setattr(module.paths, "rules_file", lambda: usual)
    assert module._rules_file(None) is None
    assert module._rules_file(Path("mine.toml")) == Path("mine.toml")
    usual.touch()
    assert module._rules_file(None) == usual
    assert module._rules_file(Path("mine.toml")) == Path("mine.toml")


@pytest.mark.parametrize("target", ["usual.toml", "nowhere.toml"])
def test_a_link_to_rules_that_leads_nowhere_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str
) -> None:
    usual = tmp_path / "usual.toml"
    usual.symlink_to(target)
    monkeypatch.setattr(module.paths, "rules_file", lambda: usual)
    with pytest.raises(UsageError, match=r"usual\.toml: the rules cannot be read: "):
        Rules.load(module._rules_file(None) or tmp_path)


def test_where_the_home_folder_is_somebody_elses_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "lstat", denied)
    monkeypatch.setattr(module.paths, "rules_file", lambda: Path("/root/.config/runlist/rules.toml"))
    with pytest.raises(NoPermissionError, match="Permission denied: set HOME to a folder of this user's"):
        module._rules_file(None)

    def homeless() -> Path:
        raise NoPermissionError("this user has no home folder")

    monkeypatch.setattr(module.paths, "rules_file", homeless)
    assert module._rules_file(None) is None
    assert module._rules_file(Path("mine.toml")) == Path("mine.toml")


@pytest.mark.parametrize("text", ["name", "=value", ""])
def test_an_option_is_a_name_and_a_value(text: str) -> None:
    assert module._option("a=b=c") == ("a", "b=c")
    assert module._option("a=") == ("a", "")
    with pytest.raises(UsageError, match="write NAME=VALUE"):
        module._option(text)


def test_it_ends_once_nobody_wanted_it_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last who did; and from then on nobody can connect."""
    clock, slept = SimpleNamespace(now=0.0), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += seconds
        server.busy = 4 < clock.now < 6

    server: Any = SimpleNamespace(busy=False, close=lambda: closed.append(clock.now))
    closed: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
    asyncio.run(module._end_when_idle(server, 5.0))
    assert closed == [10.5]
    assert set(slept) == {0.5}
    closed.clear()
    asyncio.run(module._end_when_idle(server, 2.5))
    assert closed == [13.0]


def test_a_second_one_is_refused_and_a_file_in_the_place_of_the_socket_is_kept(
    monkeypatch: pytest.MonkeyPatch, short_path: Path
) -> None:
    path = short_path / "folder" / "daemon.sock"
    monkeypatch.setattr(module.paths, "daemon_socket", lambda plane: path)
    plane: Any = SimpleNamespace()
    with module._listening(plane, None, ServiceManager({})):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.with_suffix(".lock").stat().st_mode) == 0o600
        assert path.with_suffix(".lock").read_text() == str(os.getpid())
        with (
            pytest.raises(RunlistError, match=rf"a daemon runs already \(process {os.getpid()}, "),
            module._listening(plane, None, ServiceManager({})),
        ):
            pass
        assert path.is_socket()
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(UsageError, match="is not a socket"), module._listening(plane, None, ServiceManager({})):
        pass
    assert path.read_text() == "precious"
    path.unlink()
    with module._listening(plane, None, ServiceManager({})):  # each of them let go of the lock
        pass


class Watch:
    """Of the GPU's files: an open is a byte in a pipe."""

    works = True

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self.closed = 0

    def opens(self) -> None:
        os.write(self._writer, b"x")

    def fileno(self) -> int:
        return self._reader

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 64)

    def close(self) -> None:
        self.closed += 1
        os.close(self._reader)
        os.close(self._writer)


def test_it_looks_soon_after_something_was_opened_and_else_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    monkeypatch.setattr(module, "OpenWatch", lambda paths: watch)
    monkeypatch.setattr(module, "FIRST_LOOK_S", 0.001)
    monkeypatch.setattr(module, "SCAN_EVERY_S", 600.0)
    monkeypatch.setattr(module, "SETTLE_S", 600.0)  # for so long it looks often, unless all is settled
    monkeypatch.setattr(module, "NEWCOMERS_EVERY_S", 0.005)

    async def main() -> None:
        walks: list[bool] = []

        async def scan(*, walk: bool) -> None:
            walks.append(walk)

        async def scanned(more: int) -> None:
            before = len(walks)
            async with asyncio.timeout(PATIENCE_S):
                while len(walks) < before + more:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)

        newcomers: list[int] = []
        asked: list[int] = []

        async def has_newcomers() -> bool:
            asked.append(len(walks))
            return bool(newcomers)

        async def begun() -> None:
            walks.clear()

        class Rules(list[object]):
            drop_ins: dict[str, object] = {}  # noqa: RUF012

        search = SimpleNamespace(scan=scan, settled=False, has_newcomers=has_newcomers, took_s=0.0, missed=False)
        daemon: Any = SimpleNamespace(
            plane=SimpleNamespace(watch_paths=list),
            opened=asyncio.Event(),
            processes=SimpleNamespace(roots={}),
            placement=SimpleNamespace(rules=Rules()),
            search=search,
            sightings=SimpleNamespace(begun=begun),
            kernel=SimpleNamespace(works=False),
        )
        looking = asyncio.create_task(module._look(daemon))
        await asyncio.sleep(0.05)
        assert walks == []  # there is nobody to look for
        daemon.processes.roots[1] = object()
        await scanned(2)
        assert not any(walks)  # nobody opened anything
        watch.opens()
        await scanned(3)
        assert walks.count(True) == 1
        assert not daemon.opened.is_set()
        daemon.kernel.works = True  # it tells of groups, and who only asks a GPU how it is makes none
        watch.opens()
        await scanned(1)
        assert walks.count(True) == 1
        assert not daemon.opened.is_set()
        daemon.kernel.works = False
        search.settled = True
        await scanned(1)
        await asyncio.sleep(0.02)
        before = len(walks), len(asked)
        await asyncio.sleep(0.05)
        assert (len(walks), len(asked)) == before  # all is at rest
        daemon.processes.roots.clear()
        daemon.placement.rules.append(object())
        daemon.opened.set()
        await scanned(1)
        assert walks[-1]
        daemon.placement.rules.drop_ins = {"a.toml": object()}
        daemon.opened.set()
        await scanned(1)
        at_rest = len(walks)
        await asyncio.sleep(0.05)
        assert len(walks) == at_rest  # and nobody new is on a GPU
        newcomers.append(1)
        await scanned(1)
        assert walks[-1]
        looking.cancel()
        await asyncio.wait([looking])

    asyncio.run(main())
    assert watch.closed == 1


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), MemoryError(), OSError(errno.EMFILE, "full")]
)
def test_without_room_to_start_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: Exception
) -> None:
    async def run(*_: object) -> int:
        raise error

    monkeypatch.setattr(module, "_run", run)
    monkeypatch.setattr(threads, "refuse_without_memory", lambda: None)
    monkeypatch.setattr(sys, "argv", ["runlist daemon"])
    assert module.main() == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert f"there is no room for a daemon ({error or 'no memory'}): see `ulimit -a`" in line


def test_without_room_to_end_its_loop_it_has_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(*_: object) -> int:
        asyncio.get_running_loop().shutdown_default_executor = refuse  # type: ignore[method-assign]
        return 0

    async def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "_run", run)
    monkeypatch.setattr(threads, "refuse_without_memory", lambda: None)
    monkeypatch.setattr(sys, "argv", ["runlist daemon"])
    assert module.main() == 0


def test_what_an_earlier_daemon_left_is_put_back_before_there_is_a_record_of_our_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module.paths, "daemon_socket", lambda plane: tmp_path / "daemon.sock")
    earlier = Record(tmp_path / "daemon.changed")
    earlier.add(os.getpid())
    os.close(earlier.fd)  # it is killed, and its keeper too
    put_back: list[int] = []
    record = module._record(SimpleNamespace(rescue=put_back.append))  # type: ignore[arg-type]
    assert put_back == [os.getpid()]
    assert (tmp_path / "daemon.changed").read_bytes() == b""
    record.close()


def test_weights_of_cgroups_are_followed_at_every_second_check(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, followed = 0, []

    async def sleep(seconds: float) -> None:
        nonlocal rounds
        rounds += 1
        if rounds > 6:
            raise KeyboardInterrupt

    async def nothing() -> None:
        pass

    daemon: Any = SimpleNamespace(
        gpus=SimpleNamespace(read_usage=lambda kept_s: None, look_beside=lambda: None),
        keeper=SimpleNamespace(look=lambda: None),
        checks=SimpleNamespace(check=lambda files, slices, of: None),
        processes=SimpleNamespace(forget_heirs=nothing, expected=set(), managed={}),
        rousing=SimpleNamespace(look=lambda: None),
        manager=SimpleNamespace(look_who_joined=lambda: None, look_who_is_left=lambda: None),
        kernel=SimpleNamespace(works=True, check=lambda: True, asking=lambda managed: set()),
        sightings=SimpleNamespace(count=lambda: None),
        search=SimpleNamespace(seek=lambda listed: nothing()),
        revision=SimpleNamespace(rules_changed=lambda rules: followed.append((rounds, rules))),
    )
    limit: Any = SimpleNamespace(say_left_out=lambda: None)
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(module, "CPU_WEIGHTS", SimpleNamespace(changed=lambda: rounds != 4))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(module._check(daemon, limit, asyncio.Event()))
    assert followed == [(2, None), (6, None)]
