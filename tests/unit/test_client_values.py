"""What programs give to the client: numbers are values, and what is neither text nor number is refused here."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

import runlist
from runlist import wire
from runlist.client import Client, DaemonGone
from runlist.errors import NoTargetError, RunlistError, UsageError
from runlist.version import __version__
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
    assert fake.asked(wire.Launch) == [wire.Launch(42, {"cap": word}, hears=True)]


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
            with pytest.raises(TypeError, match=r"^a process id is a whole number, not "):
                ask(value)
        assert fake.requests == []
        assert len(client.ps()) == 1  # it is as usable as before


def test_a_patience_that_is_none_is_refused_and_any_other_taken(fake: FakeDaemon) -> None:
    for wrong, error in (
        (float("nan"), ValueError),
        (0, ValueError),
        (-1, ValueError),
        ("5", TypeError),
        (True, TypeError),
    ):
        with pytest.raises(error, match=r"^patience_s is "):
            Client.open(patience_s=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^a device is a string, not 5"):
        Client.open(device=5)  # type: ignore[arg-type]
    for patience_s in (5, 4.9999999, 1e9):
        with Client.open(patience_s=patience_s) as client:
            assert len(client.ps()) == 1


@pytest.mark.parametrize("pid", [0, -1, 1 << 31, 1 << 63, 10**30, -(10**30)])
def test_numbers_that_no_process_has(fake: FakeDaemon, pid: int) -> None:
    with Client.open() as client:
        with pytest.raises(NoTargetError, match=f"process {pid} does not exist"):
            client.suspend(pid)
        assert fake.requests == []
        assert len(client.ps()) == 1


@pytest.mark.parametrize("settings", ["weight=3", ["weight=3"], 3, [3], {3: 3}, {"weight": None}])
def test_settings_are_values_by_name(fake: FakeDaemon, settings: Any) -> None:
    with Client.open() as client:
        for ask in (client.set, lambda pid, given: client.attach(pid, settings=given)):
            with pytest.raises(TypeError):
                ask(42, settings)
        with pytest.raises(TypeError):
            client.use_policy("fair", settings)
    assert fake.requests == []


def test_threads_share_a_client_and_each_has_its_own_answers(fake: FakeDaemon) -> None:
    fake.answers[wire.Change] = wire.Tasks([])
    wrong: list[object] = []

    def asks() -> None:
        for _ in range(100):
            try:
                found = client.status().pid, len(client.ps()), len(client.set(42, {}))
            except RunlistError as error:
                wrong.append(error)
                return
            if found != (7, 1, 0):
                wrong.append(found)

    with Client.open() as client:
        threads = [threading.Thread(target=asks) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_after_an_interrupt_nobody_gets_the_answer_of_another_request(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client.open() as client:
        assert client.ps() == fake.tasks

        def interrupted() -> bytes:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(client._connection, "receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.suspend(42)
        for _ in range(2):
            with pytest.raises(DaemonGone, match="this client has no connection any more"):
                client.status()
    with pytest.raises(DaemonGone, match="it was closed"):
        client.ps()


def test_a_child_of_fork_opens_a_client_of_its_own(fake: FakeDaemon) -> None:
    with Client.open() as client:
        if (child := os.fork()) == 0:
            try:
                client.ps()
            except DaemonGone as error:
                os._exit(7 if "which forked: open another" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert client.ps() == fake.tasks
    assert fake.requests == [wire.ListTasks()]


def test_a_deadline_replaces_the_usual_class(fake: FakeDaemon) -> None:
    with Client.open() as client:
        client.attach(42, settings={"deadline": "5ms/20ms"})
    assert fake.asked(wire.Attach) == [wire.Attach(42, {"deadline": "5ms/20ms"})]


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.manage({"weight": 50}),
        lambda client: client.rules(),
        lambda client: client.workloads(),
        lambda client: client.policy_map(),
        lambda client: client.reload_rules(),
    ],
)
def test_a_daemon_that_knows_no_such_request_is_of_another_version(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Client], object]
) -> None:
    """It hangs up, and runs on: that it ended and put everything back would be untrue. It is asked who it is."""
    answer = fake._answer

    def hang_up(request: object) -> object:
        if not isinstance(request, wire.GetStatus):
            fake._peers[-1].shutdown(socket.SHUT_RDWR)
        return answer(request)

    monkeypatch.setattr(fake, "_answer", hang_up)
    with pytest.raises(DaemonGone, match="the daemon ended"), Client.open() as client:
        ask(client)
    fake.status = status(version="0.7.0rc1")
    other = f"process {fake.status.pid} is a daemon of Runlist 0.7.0rc1, and this is {__version__}: end it with"
    for start in (False, True):
        with pytest.raises(DaemonGone, match=other), Client.open(start=start) as client:
            ask(client)
    with pytest.raises(DaemonGone, match=other), runlist.manage(weight=50):
        raise AssertionError


def test_a_daemon_that_hangs_up_on_everybody_has_ended(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang_up(request: object) -> None:
        fake._peers[-1].shutdown(socket.SHUT_RDWR)

    monkeypatch.setattr(fake, "_answer", hang_up)
    for ask in (Client.rules, Client.status):
        with pytest.raises(DaemonGone, match="the daemon ended"), Client.open() as client:
            ask(client)
    assert len(fake.asked(wire.GetStatus)) == 2  # of the first one, once
