"""One relay as the daemon sees it: what it is told, what it owes, and how it ends. A sleeping process stands for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from runlist.daemon.relay import channel, relay
from runlist.daemon.relay.channel import Packet, Say
from runlist.daemon.relay.nursery import Birth
from runlist.daemon.relay.relay import Relay
from runlist.proc import process
from tests.fixtures.daemon import PATIENCE_S, wait_for

# As they are to be: taken from the code they would hold whatever it says.
CONNECTIONS_AT_ONCE = 1024
CONNECTIONS_A_SECOND = 1000
SIGN_S = 0.9
START_S = 10.0
STARVED_SIGN_S = 10.0


class Seen:
    """A relay, the other end of its channel, its process, and what was heard of it."""

    def __init__(self) -> None:
        ours, self.end = channel.pair()
        ours.setblocking(False)
        self.end.setblocking(False)
        self.process: subprocess.Popen[bytes] | None = None
        self.birth = Birth(ours)
        self.packets: list[Packet] = []
        self.ends: list[bool] = []
        self.gone = 0
        self.relay = Relay(self.birth, 7, lambda _, packet: self.packets.append(packet), self._ended)
        self.relay.on_gone = self._on_gone

    def bear(self, *command: str) -> None:
        self.process = subprocess.Popen(command or ("sleep", "60"))
        assert self.birth.on_born is not None
        self.birth.on_born(os.pidfd_open(self.process.pid))

    def said(self) -> Packet | None:
        """What the relay was told next; nothing where there is nothing."""
        try:
            return channel.receive(self.end)
        except BlockingIOError:
            return None

    def say(self, say: Say, number: int, body: bytes = b"") -> None:
        channel.send(self.end, say, number, body)

    async def dies(self) -> None:
        """Its process is killed, and that is noticed."""
        assert self.process is not None
        process = self.process
        await until(lambda: process.poll() is not None)
        await until(lambda: self.relay.is_gone)

    def _ended(self, of: Relay, hung: bool) -> None:
        assert of is self.relay
        self.ends.append(hung)

    def _on_gone(self) -> None:
        self.gone += 1


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


async def turns() -> None:
    """Let the loop do what can be done at once."""
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def seen(*, born: bool = True) -> AsyncIterator[Seen]:
    one = Seen()
    if born:
        one.bear()
    try:
        yield one
    finally:
        one.relay.kill()
        if one.process is not None:
            await one.dies()
        one.end.close()
        await turns()


def run(test: Callable[[Seen], object], *, born: bool = True) -> None:
    """Run a test in a loop."""

    async def main() -> None:
        async with seen(born=born) as one:
            await test(one)  # type: ignore[misc]

    asyncio.run(main())


def test_connections_are_handed_over_and_one_go_is_for_all_of_a_round() -> None:
    async def test(one: Seen) -> None:
        far = []
        for number in (1, 2):
            mine, handed = socket.socketpair()
            served, theirs = socket.socketpair()
            assert one.relay.hand_over(Say.CONNECT, handed, theirs)
            assert handed.fileno() < 0  # our copy is closed before it is touched
            assert theirs.fileno() >= 0
            one.relay.go()
            far += [mine, served, theirs]
            packet = one.said()
            assert packet is not None
            assert (packet.say, packet.number, packet.body, len(packet.fds)) == (Say.CONNECT, number, b"", 2)
            assert os.fstat(packet.fds[1]).st_ino == os.fstat(theirs.fileno()).st_ino
            packet.close()
        last, handed = socket.socketpair()
        assert one.relay.hand_over(Say.CLOSE, handed, body=b"no room")
        packet = one.said()
        assert packet is not None
        assert (packet.say, packet.number, packet.body, len(packet.fds)) == (Say.CLOSE, 3, b"no room", 1)
        packet.close()
        assert one.said() is None
        await turns()
        assert one.said() == (Say.GO, 3, b"", [])
        assert one.said() is None
        one.relay.go()
        await turns()
        assert one.said() == (Say.GO, 3, b"", [])
        for sock in (*far, last):
            sock.close()

    run(test)


def test_what_cannot_be_handed_over_is_still_ours() -> None:
    async def test(one: Seen) -> None:
        one.end.close()
        mine, handed = socket.socketpair()
        assert not one.relay.hand_over(Say.CLOSE, handed)
        assert handed.fileno() >= 0
        assert not one.relay.take(Say.TAKE, 1.0, lambda: None)
        assert not one.relay.busy
        mine.close()
        handed.close()

    run(test)


def test_it_owes_a_sign_of_life_for_each_go() -> None:
    async def test(one: Seen) -> None:
        mine, handed = socket.socketpair()
        assert not one.relay.busy
        one.relay.hand_over(Say.CLOSE, handed)
        one.relay.go()
        await turns()
        assert one.relay.busy
        one.say(Say.GO, 0)  # to an earlier one: it lives, and still owes the last
        await turns()
        assert one.relay.busy
        one.say(Say.GO, 1)
        await until(lambda: not one.relay.busy)
        mine.close()

    run(test)


@pytest.mark.parametrize("answers", [True, False])
def test_it_is_killed_where_it_gives_no_sign(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_SIGN_S", 5.0)

    async def test(one: Seen) -> None:
        now = time.monotonic()
        one.relay.look(now)  # asks for one
        await turns()
        assert one.said() == (Say.GO, 0, b"", [])
        one.relay.look(now + 4.0)
        assert one.ends == []
        if answers:
            one.say(Say.GO, 0)
            one.say(Say.GO, 0)
            await until(lambda: not one.relay.busy)
            one.relay.look(now + 6.0)
            await turns()
            assert one.ends == []
        else:
            assert one.process is not None
            pid = one.process.pid
            await until(lambda: not process.wants_processor(pid))
            one.relay.look(now + 6.0)
            assert one.ends == [True]
            await one.dies()
            assert (one.gone, one.ends) == (1, [True])

    run(test)


def test_one_that_answers_late_has_its_time_again() -> None:
    """What it was given meanwhile takes time, too."""

    async def test(one: Seen) -> None:
        one.relay.look(time.monotonic())
        await turns()
        mine, handed = socket.socketpair()
        one.relay.hand_over(Say.CLOSE, handed)
        await asyncio.sleep(0.1)
        asked = time.monotonic() - 0.1
        one.say(Say.GO, 0)
        await turns()
        one.relay.look(asked + SIGN_S + 0.05)
        assert (one.ends, one.relay.busy) == ([], True)
        one.relay.look(time.monotonic() + SIGN_S + 0.05)
        assert one.ends == [True]
        mine.close()

    run(test)


def test_its_start_has_more_time() -> None:
    async def test(one: Seen) -> None:
        now = time.monotonic()
        one.relay.go()
        await turns()
        assert not one.relay.busy  # it owes nothing before it runs
        one.relay.look(now + START_S - 0.5)
        assert one.ends == []
        assert not one.relay.is_running
        one.relay.look(now + START_S + 0.5)
        assert one.ends == [True]
        one.bear()  # given up meanwhile: it is ended as it comes
        assert one.relay.is_running
        await one.dies()
        assert one.ends == [True]

    run(test, born=False)


def test_one_that_could_not_be_started_is_gone_and_nobody_is_blamed() -> None:
    async def test(one: Seen) -> None:
        done: list[int] = []
        assert one.relay.take(Say.DROP, 60.0, lambda: done.append(1))
        assert one.birth.on_born is not None
        one.birth.on_born(None)
        assert (one.ends, one.relay.is_gone, done) == ([False], True, [1])

    run(test, born=False)


def test_it_takes_one_datagram_at_a_time() -> None:
    async def test(one: Seen) -> None:
        done: list[str] = []
        assert one.relay.take(Say.TAKE, 60.0, lambda: done.append("first"))
        assert one.relay.busy
        assert not one.relay.take(Say.DROP, 60.0, lambda: done.append("refused"))
        assert one.said() == (Say.TAKE, 1, b"", [])
        one.say(Say.TAKEN, 9)
        await turns()
        assert done == []
        one.say(Say.TAKEN, 1)
        await until(lambda: done == ["first"])
        assert not one.relay.busy
        assert one.relay.take(Say.DROP, 60.0, lambda: done.append("second"))
        assert one.said() == (Say.DROP, 2, b"", [])
        one.say(Say.TAKEN, 2)
        await until(lambda: done == ["first", "second"])
        one.say(Say.TAKEN, 2)
        await turns()
        assert (done, one.ends) == (["first", "second"], [])

    run(test)


@pytest.mark.parametrize("born", [True, False])
def test_a_datagram_that_takes_too_long_is_the_end_of_it(born: bool) -> None:
    """Nobody else's datagrams wait for longer: whose process ended has let the socket go."""

    async def test(one: Seen) -> None:
        done: list[int] = []
        assert one.relay.take(Say.TAKE, 0.05, lambda: done.append(1))
        if not born:
            await asyncio.sleep(0.1)
            assert one.ends == []
            one.bear()
        await until(lambda: one.ends == [True])
        await until(lambda: done == [1])
        await one.dies()
        assert done == [1]

    run(test, born=born)


def test_what_it_said_while_the_daemon_was_busy_counts() -> None:
    """It was killed for the daemon's own lateness, with what it had to say, and its user was refused."""

    async def test(one: Seen) -> None:
        done: list[int] = []
        assert one.relay.take(Say.TAKE, 0.05, lambda: done.append(1))
        for say, number in ((Say.GO, 0), (Say.TAKEN, 1), (Say.DATAGRAM, 1)):
            one.say(say, number)
        time.sleep(0.1)  # noqa: ASYNC251 (nothing else is done meanwhile)
        await turns()
        assert (one.ends, done, [packet.say for packet in one.packets]) == ([], [1], [Say.DATAGRAM])
        one.relay.look(time.monotonic())  # asks for a sign of life
        await turns()
        one.say(Say.GO, 1)
        one.relay.look(time.monotonic() + SIGN_S + 0.1)
        assert one.ends == []

    run(test)


def test_what_it_is_asked_before_its_sign_has_come_delays_none() -> None:
    """Programs that came just then had their user lose all connections, once in two thousand."""

    async def test(one: Seen) -> None:
        now = time.monotonic()
        one.relay.look(now)  # asks for a sign of life
        await turns()
        assert one.said() == (Say.GO, 0, b"", [])
        assert one.relay.take(Say.TAKE, 60.0, lambda: None)
        one.say(Say.GO, 0)
        one.say(Say.TAKEN, 1)
        await turns()
        assert not one.relay.busy
        one.relay.look(now + SIGN_S + 0.1)
        assert one.ends == []

    run(test)


SPINS = ("sh", "-c", "while :; do :; done")


def test_one_that_only_waits_for_a_processor_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that paused for 0.3 s a user lost all connections, for nothing that anybody had done."""
    looks: list[bool] = []
    looked = process.wants_processor

    def look(pid: int) -> bool:
        looks.append(looked(pid))
        return looks[-1]

    monkeypatch.setattr(process, "wants_processor", look)
    monkeypatch.setattr(relay, "STARVED_S", 60.0)

    async def test(one: Seen) -> None:
        one.bear(*SPINS)
        assert one.relay.take(Say.TAKE, 0.01, lambda: None)
        await until(lambda: looks.count(True) >= 5)
        one.relay.look(time.monotonic())  # asks for a sign of life
        await turns()
        one.relay.look(time.monotonic() + SIGN_S + 1.0)
        assert not one.ends
        one.relay.look(time.monotonic() + STARVED_SIGN_S + 1.0)
        assert one.ends == [True]

    run(test, born=False)


def test_a_datagram_waits_for_one_that_spins_for_so_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "STARVED_S", 0.1)

    async def test(one: Seen) -> None:
        one.bear(*SPINS)
        assert one.relay.take(Say.TAKE, 0.01, lambda: None)
        await until(lambda: one.ends == [True])

    run(test, born=False)


def test_a_taken_datagram_has_no_time_limit_any_more() -> None:
    async def test(one: Seen) -> None:
        assert one.relay.take(Say.TAKE, 0.1, lambda: None)
        one.say(Say.TAKEN, 1)
        await asyncio.sleep(0.2)
        assert one.ends == []

    run(test)


def test_a_process_that_does_not_die_gives_the_datagrams_back_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_GRACE_S", 0.05)

    async def test(one: Seen) -> None:
        done: list[int] = []
        assert one.relay.take(Say.TAKE, 60.0, lambda: done.append(1))
        one.relay.kill()
        assert done == []
        await until(lambda: done == [1])

    run(test, born=False)


def test_what_it_says_is_passed_on() -> None:
    async def test(one: Seen) -> None:
        one.say(Say.BROKEN, 3, b"half a frame")
        await until(lambda: one.packets)
        assert one.packets == [(Say.BROKEN, 3, b"half a frame", [])]
        one.end.close()  # it never ends by itself
        await until(lambda: one.ends == [True])

    run(test)


def test_one_that_nobody_needs_is_ended_once() -> None:
    async def test(one: Seen) -> None:
        one.relay.go()
        one.relay.kill()
        one.relay.kill()
        one.relay.hang()
        await one.dies()
        assert (one.ends, one.gone, one.relay.is_running) == ([False], 1, False)
        with contextlib.suppress(ConnectionResetError):
            assert one.said() is None

    run(test)


def test_its_death_is_noticed() -> None:
    async def test(one: Seen) -> None:
        assert one.process is not None
        one.process.kill()
        await one.dies()
        assert (one.ends, one.gone) == ([True], 1)

    run(test)


def test_so_many_connections_at_once_and_then_so_many_a_second() -> None:
    async def test(one: Seen) -> None:
        def at_once() -> tuple[int, float]:
            began, count = time.monotonic(), 0
            while one.relay.may_connect():
                count += 1
            return count, time.monotonic() - began

        first, took = at_once()
        assert CONNECTIONS_AT_ONCE <= first <= CONNECTIONS_AT_ONCE + CONNECTIONS_A_SECOND * (took + 0.05)
        paused = time.monotonic()
        await asyncio.sleep(0.1)
        second, _ = at_once()
        assert 90 <= second <= CONNECTIONS_A_SECOND * (time.monotonic() - paused + 0.05)
        await asyncio.sleep(0)
        one.relay.connections = 2
        before = one.relay.idle_since
        one.relay.hung_up()
        assert one.relay.connections == 1
        assert one.relay.idle_since > before

    run(test)


def test_descriptors_of_its_process_are_closed() -> None:
    async def lives() -> None:
        async with seen() as one:
            one.relay.kill()
            await one.dies()

    async def main() -> None:
        await lives()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            await lives()
        wait_for(lambda: len(os.listdir("/proc/self/fd")) == before)

    asyncio.run(main())
