"""The daemon's side of the actuator, beside programs that play it: well, badly, or not at all."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from runlist.daemon.actuator import link, messages
from runlist.daemon.actuator.link import ActuatorLink
from runlist.daemon.actuator.messages import Result
from runlist.errors import NoPermissionError
from runlist.planes.interface import Prepared
from runlist.protocol.actuator_autogen import MAX_BYTES, MAX_TARGETS, MAX_WORDS
from tests.fixtures.daemon import running, wait_for

# As they are to be: taken from the code they would hold whatever it says.
LONGEST_RETRY_S = 60.0
RETRY_S = 0.1

PATIENCE_S = 50.0
PREPARED = Prepared((b"off",), (b"on",))

BEGIN = f"""#!{sys.executable} -IS
import select, socket, struct, sys, time
daemon = socket.socket(fileno=0)
def say(kind, number, word=0, results=(), error=0):
    body = b"".join(struct.pack("<3Q2I", *each) for each in results)
    daemon.send(struct.pack("<2IQ3I4x", kind, word, number, 0, len(results), error) + body)
while message := daemon.recv(65536):
    kind, _, number = struct.unpack_from("<2IQ", message)
"""
"""A program that plays an actuator; what it does with each message follows."""

OBEYS = "    if kind == 2: say(3, number)\n"
RESULTS = [(1_000, 2_000, 3_000, 0, 0), (4_000, 5_000, 6_000, 0, 7)]
FIRES = f"    say(4, number, 0, {RESULTS}) if kind == 1 else say(3, number)\n"
DROPS = "    say(5, number, 3) if kind == 1 else say(3, number)\n"
UNABLE = "    say(6, 0, 0, (), 38); sys.exit()\n"
UNABLE_UNREAD = "    select.select([daemon], [], [])\n" + UNABLE
"""It ends without having read all that it was told."""
NONSENSE = "    daemon.send(b'what'); time.sleep(60)\n"
SILENT = "    pass\n"
ENDS = "    sys.exit()\n"


@dataclass
class Owner:
    """Notes what it is told."""

    told: list[tuple[Any, ...]] = field(default_factory=list)

    def __hash__(self) -> int:
        return id(self)

    def fired(self, word: int, results: Sequence[Result]) -> None:
        self.told.append(("fired", word, *results))

    def dropped(self, word: int) -> None:
        self.told.append(("dropped", word))

    def lost(self) -> None:
        self.told.append(("lost",))

    def may_arm(self) -> None:
        self.told.append(("may arm",))


Play = Callable[[str, Callable[[ActuatorLink, Owner], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Runs a test beside an actuator that behaves in some way."""
    path = tmp_path / "actuator"
    monkeypatch.setattr(link, "program", lambda name: path)

    def run(behaviour: str, test: Callable[[ActuatorLink, Owner], Coroutine[Any, Any, None]]) -> None:
        if behaviour is not SILENT:  # a busy machine may take long to start it
            monkeypatch.setattr(link, "PATIENCE_S", PATIENCE_S)
        path.write_text(BEGIN + behaviour)
        path.chmod(0o700)

        async def main() -> None:
            actuator = ActuatorLink("nvidia")
            try:
                await test(actuator, Owner())
            finally:
                actuator.close()
            assert actuator.pid == 0

        asyncio.run(main())

    return run


def arm(actuator: ActuatorLink, owner: Owner, words: int = 1, targets: int = 2) -> int:
    file = os.open("/dev/null", os.O_RDONLY)
    try:
        return actuator.arm([(file, 0)] * words, [(file, PREPARED)] * targets, owner)
    finally:
        os.close(file)


async def told(owner: Owner, count: int = 1) -> None:
    until = time.monotonic() + PATIENCE_S
    while len(owner.told) < count:
        assert time.monotonic() < until, owner.told
        await asyncio.sleep(0.005)


def test_one_is_started_with_the_first_arm_and_ends_with_the_daemon(play: Play) -> None:
    async def test(actuator: ActuatorLink, owner: Owner) -> None:
        assert actuator.pid == 0
        assert [arm(actuator, owner), arm(actuator, owner)] == [1, 2]
        pid = actuator.pid
        assert pid
        assert running(pid)
        actuator.disarm(1)
        actuator.disarm(1)  # there is none any more
        assert owner.told == []
        actuator.close()
        assert not running(pid)
        assert arm(actuator, owner) == 0

    play(OBEYS, test)


def test_what_it_did_is_told_with_its_times_in_order(play: Play) -> None:
    async def test(actuator: ActuatorLink, owner: Owner) -> None:
        number = arm(actuator, owner)
        await told(owner)
        done, failed = Result(1e-6, 2e-6, 3e-6, done=True), Result(4e-6, 5e-6, 6e-6, done=False)
        assert owner.told == [("fired", 0, done, failed)]
        actuator.disarm(number)
        assert len(owner.told) == 1

    play(FIRES, test)


def test_what_it_did_before_it_let_go_is_told_before_that_returns(play: Play) -> None:
    async def test(actuator: ActuatorLink, owner: Owner) -> None:
        actuator.disarm(arm(actuator, owner))
        assert [each[0] for each in owner.told] == ["fired"]

    play(FIRES, test)


def test_which_word_it_lets_go_of_is_told(play: Play) -> None:
    async def test(actuator: ActuatorLink, owner: Owner) -> None:
        arm(actuator, owner)
        await told(owner)
        assert owner.told == [("dropped", 3)]

    play(DROPS, test)


@pytest.mark.parametrize(("words", "targets"), [(MAX_WORDS + 1, 1), (1, MAX_TARGETS + 1)])
def test_more_than_an_arm_can_hold_is_not_armed_and_starts_nothing(play: Play, words: int, targets: int) -> None:
    async def test(actuator: ActuatorLink, owner: Owner) -> None:
        assert arm(actuator, owner, words, targets) == 0
        assert actuator.pid == 0
        big = Prepared((bytes(MAX_BYTES),), (b"",))
        assert actuator.arm([], [(0, big)], owner) == 0
        assert actuator.pid == 0
        assert arm(actuator, owner, MAX_WORDS, MAX_TARGETS) == 1

    play(OBEYS, test)


@pytest.mark.parametrize(("behaviour", "arms"), [(UNABLE, 1), (UNABLE_UNREAD, 2)], ids=["all read", "some unread"])
def test_where_the_kernel_cannot_do_it_none_is_started_again(play: Play, behaviour: str, arms: int) -> None:
    async def test(actuator: ActuatorLink, owner: Owner) -> None:
        for _ in range(arms):
            arm(actuator, owner)
        wait_for(lambda: not running(actuator.pid))  # before its word is heard
        await told(owner, arms)
        assert owner.told == [("lost",)] * arms
        assert arm(actuator, owner) == 0
        await asyncio.sleep(3 * RETRY_S)
        assert (owner.told, actuator.pid) == ([("lost",)] * arms, 0)

    play(behaviour, test)


@pytest.mark.parametrize("behaviour", [SILENT, NONSENSE], ids=["silent", "nonsense"])
def test_one_that_does_not_answer_or_makes_no_sense_is_killed(play: Play, behaviour: str) -> None:
    async def test(actuator: ActuatorLink, owner: Owner) -> None:
        number = arm(actuator, owner)
        pid = actuator.pid
        actuator.disarm(number)
        assert owner.told == [("lost",)]
        assert arm(actuator, owner) == 0  # for a moment
        wait_for(lambda: not running(pid))
        await told(owner, 2)
        assert owner.told[1] == ("may arm",)
        assert arm(actuator, owner) != 0

    play(behaviour, test)


def test_after_each_end_it_rests_longer_unless_it_lived_long(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []

    async def test(actuator: ActuatorLink, owner: Owner) -> None:
        later = actuator._loop.call_later

        def call_later(delay: float, *arguments: Any) -> asyncio.TimerHandle:
            rests.append(delay)
            return later(0.0, *arguments)

        monkeypatch.setattr(actuator._loop, "call_later", call_later)

        async def ends() -> None:
            count = len(rests)
            assert arm(actuator, owner)
            until = time.monotonic() + PATIENCE_S
            while len(rests) == count or actuator._retry is not None:
                assert time.monotonic() < until
                await asyncio.sleep(0)

        for _ in range(3):
            await ends()
        assert rests == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]
        monkeypatch.setattr(link, "LONG_LIFE_S", 0.0)
        await ends()
        assert rests[-1] == RETRY_S
        monkeypatch.setattr(link, "LONG_LIFE_S", 10.0)
        for _ in range(12):
            await ends()
        assert rests[-1] == LONGEST_RETRY_S

    play(ENDS, test)


def test_nobody_is_told_anything_once_the_daemon_closes_it(play: Play) -> None:
    async def test(actuator: ActuatorLink, owner: Owner) -> None:
        arm(actuator, owner)
        await told(owner)  # lost; it rests
        actuator.close()
        await asyncio.sleep(2 * RETRY_S)
        assert owner.told == [("lost",)]

    play(ENDS, test)


@pytest.mark.parametrize("message", [b"", b"short", messages.disarm(1) + b"more"])
def test_what_it_never_says_is_an_error(message: bytes) -> None:
    with pytest.raises(ValueError, match="it "):
        messages.said(message)


@pytest.mark.parametrize("error", [FileNotFoundError("no actuator here"), NoPermissionError("it may be changed")])
def test_an_installation_without_an_actuator_is_said_once(
    play: Play, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def missing(name: str) -> Path:
        assert name == "runlist-actuator"
        raise error

    async def test(actuator: ActuatorLink, owner: Owner) -> None:
        monkeypatch.setattr(link, "program", missing)
        with capture_logs() as log:
            assert [arm(actuator, owner) for _ in range(3)] == [0] * 3
        assert [line["reason"] for line in log] == [str(error)]
        assert (actuator.pid, actuator._retry, owner.told) == (0, None, [])

    play(OBEYS, test)


def test_one_that_cannot_be_started_is_tried_again_and_those_who_wanted_it_are_told(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(words: list[str], plane: str, ours: socket.socket, theirs: socket.socket) -> None:
        assert plane == "nvidia"
        for each in (ours, theirs):
            each.close()
        raise MemoryError

    async def test(actuator: ActuatorLink, owner: Owner) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(link.helper, "start_program", no_room)
            with capture_logs() as log:
                assert arm(actuator, owner) == 0
                assert arm(actuator, owner) == 0  # not before it has rested
            assert [line["reason"] for line in log] == ["no memory"]
        assert len(os.listdir("/proc/self/fd")) == before
        await told(owner)
        assert owner.told == [("may arm",)]
        assert arm(actuator, owner) == 1

    play(OBEYS, test)


@pytest.mark.parametrize(("lived_s", "rest_s"), [(9.9, 0.4), (10.0, 0.1)])
def test_ten_seconds_are_a_long_life(
    play: Play, monkeypatch: pytest.MonkeyPatch, lived_s: float, rest_s: float
) -> None:
    async def test(actuator: ActuatorLink, owner: Owner) -> None:
        now = time.monotonic()
        monkeypatch.setattr(link, "time", SimpleNamespace(monotonic=lambda: now))
        assert arm(actuator, owner)
        actuator._rest_s = 0.4
        now += lived_s
        rests: list[float] = []
        monkeypatch.setattr(actuator._loop, "call_later", lambda delay, *_: rests.append(delay))
        actuator._lost(kill=True)
        actuator._lost(kill=True)  # it is gone already
        assert rests == [rest_s]
        assert owner.told == [("lost",)]

    play(OBEYS, test)


def test_an_answer_may_take_a_tenth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    poll = SimpleNamespace(register=lambda sock, events: None, poll=waits.append)
    monkeypatch.setattr(link, "select", SimpleNamespace(poll=lambda: poll, POLLIN=1))
    monkeypatch.setattr(link, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    did: list[object] = []
    world: Any = SimpleNamespace(
        _arms={3: "an owner"}, _sock="a socket", pid=7, _send=lambda message, fds: did.append(message),
        _lost=lambda *, kill: did.append(("lost", kill)),
    )  # fmt: skip
    ActuatorLink.disarm(world, 4)  # there is none
    assert did == []
    ActuatorLink.disarm(world, 3)
    assert did == [messages.disarm(3), ("lost", True)]
    assert waits == [pytest.approx(100.0)]


@pytest.mark.parametrize("able", [True, False])
@pytest.mark.parametrize(("lived_s", "rest_s"), [(10.0, 0.1), (9.9, 0.8)])
def test_one_that_is_lost_is_started_again_unless_this_machine_cannot(
    monkeypatch: pytest.MonkeyPatch, able: bool, lived_s: float, rest_s: float
) -> None:
    monkeypatch.setattr(link, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    did: list[object] = []
    owner: Any = SimpleNamespace(lost=lambda: did.append("lost"))
    process = SimpleNamespace(wait=did.append, kill=lambda: did.append("killed"))
    world: Any = SimpleNamespace(
        _process=process, _able=able, pid=7, _arms={3: owner}, _refused=set(), _rest_s=0.8, _started=1000.0 - lived_s,
        _drop_socket=lambda: did.append("hung up"), _rest=lambda: did.append(("rests", world._rest_s)),
    )  # fmt: skip
    world._refused = SimpleNamespace(update=lambda owners: did.append(("refused", len(owners))))
    with capture_logs() as logs:
        ActuatorLink._lost(world)
        ActuatorLink._lost(world)  # it is gone
    assert did == ["hung up", 0.1, "lost", *([("refused", 1), ("rests", rest_s)] if able else [])]
    assert len(logs) == able
    assert (world._arms, world._process) == ({}, None)
