"""Programs that nobody manages, and that send on and on: the rules are asked about one now and then, whatever it has in
its environment, and what nobody wants is left for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from runlist.daemon.placement import facts
from runlist.daemon.placement.facts import MAX_VALUE, environment_of
from runlist.daemon.requests import messages
from runlist.daemon.requests.messages import MAGIC, VERSION, Kind, Messages
from runlist.tenant import RECORD
from tests.fixtures.adoption import PID, child, own_usage, until
from tests.fixtures.daemon import needs_root
from tests.fixtures.manager import ME, Managed, a_daemon

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]

MANY = 100_000
RULES = '[[rule]]\nuser = 12345\nset = { class = "batch" }\n'


@pytest.fixture
def starts() -> Iterator[Callable[[Mapping[str, str]], int]]:
    """Processes with an environment."""
    with contextlib.ExitStack() as stack:

        def start(environment: Mapping[str, str]) -> int:
            words = [sys.executable, "-c", "print(flush=True); input()"]
            process = stack.enter_context(
                subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            return process.pid

        yield start


def test_of_many_variables_those_are_read_that_rules_ask_for(starts: Callable[[Mapping[str, str]], int]) -> None:
    few = {"AFTER": "a", "LONG": "x" * 2 * MAX_VALUE}
    pid = starts({"BEFORE": "b", **{f"{number:x}": "" for number in range(MANY)}, **few})
    wanted = {"BEFORE", "AFTER", "LONG", "EFORE", "NONE"}
    assert environment_of(pid, wanted) == {"BEFORE": "b", "AFTER": "a", "LONG": "x" * MAX_VALUE}
    assert environment_of(pid, {"NONE"}) == {}
    assert environment_of(1 << 22, wanted) is None


def test_an_environment_that_no_rule_asks_for_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(facts, "own_bytes")
    assert environment_of(os.getpid(), ()) == {}
    found = facts.facts_of(os.getpid())
    assert found is not None
    assert found.environment == {}


def test_who_sends_on_and_on_is_looked_up_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules.toml").write_text(RULES)

    async def test(world: Managed) -> None:
        asked: list[int] = []
        settings_of = world.placement.settings_of

        def settings(pid: int, wanted: dict[str, str]) -> Any:
            asked.append(pid)
            return settings_of(pid, wanted)

        monkeypatch.setattr(world.placement, "settings_of", settings)
        with child() as one, child() as other:
            for _ in range(50):
                assert not world.manager.wants(one, ME)
                assert not world.manager.wants(other, ME)
            assert asked == [one, other]
            world.search.rules_changed(lambda pid: True)
            assert not world.manager.wants(one, ME)
            world.search.look_anew(one)
            assert not world.manager.wants(one, ME)
            assert asked == [one, other, one, one]
            world.processes.add_root(PID, {})
            assert world.manager.wants(one, ME)

    a_daemon(test, tmp_path / "rules.toml")


@needs_root
@pytest.mark.parametrize("wanted", [(True, True, False, False), (True, True, True, True)])
def test_what_nobody_wants_is_followed_by_a_rest_and_so_are_many(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: tuple[bool, ...]
) -> None:
    monkeypatch.setattr(messages, "FLOOD_PAUSE_S", 3600.0)
    monkeypatch.setattr(messages, "JOINS_AT_ONCE", 2)
    monkeypatch.setattr(messages, "JOINS_A_SECOND", 0)
    taken: list[tuple[int, bool]] = []

    class Strangers:
        def share(self, sock: socket.socket, on_datagram: object) -> None:
            self.messages = sock

        def take(self, uid: int, wanted: bool, done: Callable[[], None], apart: object = None) -> None:
            taken.append((uid, wanted))
            self.messages.recv(100)
            done()

    class Discarder:
        room = True

        def discard(self, fds: object) -> None:
            pass

    strangers = Strangers()
    short_path.chmod(0o711)

    async def test() -> None:
        heard = Messages(short_path / "m", lambda *_: True, Discarder(), strangers, lambda pid, uid: wanted[len(taken)])
        record = RECORD.pack(MAGIC, VERSION, Kind.JOIN, 0, 1, 5, 0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 0))]
            for _ in range(4):
                sender.sendmsg([record], rights, 0, str(short_path / "m"))
            await until(lambda: len(taken) >= 3)
            for _ in range(10):
                await asyncio.sleep(0.001)
        assert tuple(wish for _, wish in taken) == wanted[:3]
        heard.close()
        strangers.messages.close()

    asyncio.run(test())
