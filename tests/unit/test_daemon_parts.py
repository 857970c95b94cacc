"""Small parts of the daemon's program: what it shows, what it may open, how it reads rules again, and how it ends."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon import __main__ as module
from runlist.daemon import helper
from runlist.daemon.compose import Daemon
from runlist.errors import RunlistError


def test_the_messages_socket_has_a_second_name_where_containers_see_it(tmp_path: Path) -> None:
    messages, folder = tmp_path / "messages", tmp_path / "shown"
    messages.write_text("this one")
    folder.mkdir()
    folder.chmod(0o700)
    (folder / "messages").write_text("of an earlier daemon")
    (folder / ".messages").write_text("that ended halfway")
    shown = module._show_to_containers(messages, folder)
    assert shown == folder / "messages"
    assert shown.samefile(messages)
    assert os.listdir(folder) == ["messages"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_where_containers_cannot_see_it_that_is_said_and_nothing_else(tmp_path: Path) -> None:
    messages = tmp_path / "messages"
    messages.write_text("this one")
    (tmp_path / "a file").write_text("")
    assert module._show_to_containers(messages, tmp_path / "a file" / "shown") is None
    assert module._show_to_containers(tmp_path / "no messages", tmp_path / "shown") is None


@pytest.mark.parametrize(("most", "set_to"), [(128, 128), (4096, 4096), (resource.RLIM_INFINITY, -1), (127, None)])
def test_it_opens_as_many_files_as_it_may_and_needs_128(
    monkeypatch: pytest.MonkeyPatch, most: int, set_to: int | None
) -> None:
    limits: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, most))
    monkeypatch.setattr(resource, "setrlimit", lambda *which: limits.append(which))
    if set_to is None:
        with pytest.raises(RunlistError, match=r"only 127 files may be open .* needs 128 at least"):
            module._may_open_files()
        assert limits == []
    else:
        module._may_open_files()
        assert limits == [(resource.RLIMIT_NOFILE, (set_to, set_to))]


class Stopped(Exception):
    pass


def test_its_service_manager_hears_from_it_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[Any] = []

    async def sleep(seconds: float) -> None:
        did.append(seconds)
        if len(did) == 4:
            raise Stopped

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
    manager: Any = SimpleNamespace(alive=lambda: did.append("alive"))
    with pytest.raises(Stopped):
        asyncio.run(module._say_alive(manager, 7.5))
    assert did == ["alive", 7.5, "alive", 7.5]


def test_each_signal_has_the_rules_read_again_and_the_service_manager_told() -> None:
    did: list[str] = []

    async def read() -> None:
        did.append("read")
        if did.count("read") == 2:
            world.placement.wrong = "line 3 is wrong"
        if did.count("read") == 3:
            raise OSError(24, "Too many open files")  # a round that is left out

    world: Any = SimpleNamespace(
        revision=SimpleNamespace(reload_or_say=read), placement=SimpleNamespace(wrong=""),
    )  # fmt: skip
    manager: Any = SimpleNamespace(reloading=lambda: did.append("reloading"), ready=did.append)

    async def run() -> None:
        asked = asyncio.Event()
        job = asyncio.create_task(module._reload(world, asked, manager))
        await asyncio.sleep(0)
        assert did == []
        for _ in range(3):
            asked.set()
            for _ in range(5):
                await asyncio.sleep(0)
        job.cancel()

    asyncio.run(run())
    assert did == [
        "reloading", "read", "the rules were read again",
        "reloading", "read", "line 3 is wrong",
        "reloading", "read", "line 3 is wrong",
    ]  # fmt: skip


def test_all_of_it_is_closed_and_what_puts_back_before_the_keeper() -> None:
    closed: list[str] = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)

    Daemon(*[Part(name) for name in Daemon.__struct_fields__]).close()  # type: ignore[arg-type]
    assert sorted(closed) == [
        "actuator", "adoption", "census", "drop_ins", "gpus", "keeper", "kernel", "manager", "processes", "sightings",
    ]  # fmt: skip
    assert closed.index("sightings") < closed.index("processes")  # it begins nothing any more
    assert closed.index("processes") < closed.index("kernel")  # whose loader may be stopped: it waits for that
    assert max(map(closed.index, ("processes", "gpus", "actuator"))) < closed.index("keeper")


def test_where_a_helper_cannot_be_started_nothing_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        helper.start_program([str(tmp_path / "none")], "emulated", *socket.socketpair())
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_helper_has_its_end_as_its_input_and_a_session_of_its_own() -> None:
    ours, theirs = socket.socketpair()
    words = ["sh", "-c", 'echo "$RUNLIST_DEVICE $(cut -d" " -f6 /proc/$$/stat) $$ $(pwd)" >&0; echo lost']
    process = helper.start_program(words, "emulated", ours, theirs)
    assert theirs.fileno() < 0
    assert ours.recv(100).decode() == f"emulated {process.pid} {process.pid} /\n"
    ours.close()
    assert process.wait(60) == 0
