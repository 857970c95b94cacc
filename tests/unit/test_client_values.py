"""What programs give to the client: numbers are values, and what is neither text nor number is refused here."""

from __future__ import annotations

import socket
from fractions import Fraction
from typing import Any

import pytest

import runlist
from runlist import wire
from runlist.client import Client, DaemonGone
from runlist.errors import NoTargetError, UsageError
from tests.fixtures.fake_daemon import FakeDaemon, status


class Index:
    """A whole number of another kind, as those of numpy."""

    def __index__(self) -> int:
        return 42


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (30, "30"), (30.5, "30.5"), (0.1, "0.1"), (3.0, "3"), (1e3, "1000"), (1e-7, "0.0000001"), (-5, "-5"),
        (1 / 3, "0.3333333333333333"), (Fraction(1, 4), "0.25"), (float("nan"), "nan"), (float("inf"), "inf"),
        ("30ms/100ms", "30ms/100ms"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_people_write_them(fake: FakeDaemon, value: Any, word: str) -> None:
    fake.answers[wire.Change] = wire.Tasks([])
    with Client.open() as client:
        client.set(Index(), {"cap": value})  # type: ignore[arg-type]
        client.attach(42, "batch", settings={"cap": value})
        client.use_policy("slo", {"step": value})
        client.launch(42, None, {"cap": value})
    assert fake.asked(wire.Change) == [wire.Change(42, {"cap": word})]
    assert fake.asked(wire.Attach) == [wire.Attach(42, {"class": "batch", "cap": word})]
    assert fake.asked(wire.UsePolicy) == [wire.UsePolicy("slo", {"step": word})]
    assert fake.asked(wire.Launch) == [wire.Launch(42, {"cap": word})]


@pytest.mark.parametrize(
    ("group", "what"), [("\udcff", "a setting is no text"), ("x" * 40_000, "the settings are too long together: ")]
)
def test_what_no_daemon_would_take_is_refused_before_anything_is_sent(fake: FakeDaemon, group: str, what: str) -> None:
    with Client.open() as client:
        for ask in (
            lambda: client.set(42, {"group": group}),
            lambda: client.attach(42, settings={"group": group}),
            lambda: client.launch(42, None, {"group": group}),
        ):
            with pytest.raises(UsageError, match=f"^{what}"):
                ask()
    assert fake.requests == []


@pytest.mark.parametrize("value", [True, None, b"30", [30], {"a": 1}, 3j, object()])
def test_a_wrong_type_is_refused_before_anything_is_sent(fake: FakeDaemon, value: Any) -> None:
    with Client.open() as client:
        for ask in (
            lambda: client.set(42, {"cap": value}),
            lambda: client.attach(42, settings={"cap": value}),
            lambda: client.launch(42, None, {"cap": value}),
            lambda: client.use_policy("slo", {"step": value}),
            lambda: client.use_policy(value),
            lambda: client.set(42, {None: "30"}),
            lambda: client.attach(42, 5),
            lambda: client.set(42, 5),
        ):
            with pytest.raises(TypeError):
                ask()
        for ask in (client.suspend, client.resume, client.detach, client.attach):
            with pytest.raises(TypeError):
                ask(value)
        assert fake.requests == []
        assert len(client.ps()) == 1  # it is as usable as before


@pytest.mark.parametrize("pid", [0, -1, 1 << 31, 1 << 63, 10**30, -(10**30)])
def test_numbers_that_no_process_has(fake: FakeDaemon, pid: int) -> None:
    with Client.open() as client:
        with pytest.raises(NoTargetError, match=f"process {pid} does not exist"):
            client.suspend(pid)
        assert fake.requests == []
        assert len(client.ps()) == 1


def test_a_deadline_replaces_the_usual_class(fake: FakeDaemon) -> None:
    with Client.open() as client:
        client.attach(42, settings={"deadline": "5ms/20ms"})
    assert fake.asked(wire.Attach) == [wire.Attach(42, {"deadline": "5ms/20ms"})]


def test_a_daemon_that_knows_no_such_request_is_of_another_version(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = fake._answer

    def hang_up(request: object) -> object:
        if isinstance(request, wire.Manage):
            fake._peers[-1].shutdown(socket.SHUT_RDWR)
        return answer(request)

    monkeypatch.setattr(fake, "_answer", hang_up)
    with pytest.raises(DaemonGone, match="the daemon ended"), Client.open(start=True) as client:
        client.manage({"weight": 50})
    fake.status = status(version="0.7.0rc1")
    with pytest.raises(DaemonGone, match="another version"), runlist.manage(weight=50):
        raise AssertionError
    assert fake.asked(wire.Manage) == [wire.Manage({"weight": "50"})] * 2
