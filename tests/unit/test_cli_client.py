"""The client: what it asks, and what becomes of it when the daemon answers badly or not at all."""

from __future__ import annotations

import struct

import pytest

from runlist import wire
from runlist.client import Client, DaemonGone
from runlist.errors import ExitCode, NoTargetError, RunlistError
from tests.fixtures.fake_daemon import FakeDaemon, StartFake, status, view


def test_a_class_and_settings_go_as_one(fake: FakeDaemon) -> None:
    with Client.open() as client:
        assert client.attach(42) == fake.tasks
        client.attach(42, "batch", wait=True, settings={"cap": "30"})
        client.attach(42, None, settings={"deadline": "5ms/20ms"})
        client.attach(42, "batch", settings={"class": "latency"})
        client.launch(43, "batch")
        client.launch(43, None, {"group": "job"})
    assert fake.requests == [
        wire.Attach(42, {"class": "normal"}),
        wire.Attach(42, {"class": "batch", "cap": "30"}, wait=True),
        wire.Attach(42, {"deadline": "5ms/20ms"}),
        wire.Attach(42, {"class": "latency"}),
        wire.Launch(43, {"class": "batch"}, hears=True),
        wire.Launch(43, {"group": "job"}, hears=True),
    ]


def test_a_refusal_is_the_daemons_own_line_and_leaves_the_connection(fake: FakeDaemon) -> None:
    with Client.open() as client:
        with pytest.raises(RunlistError, match="process 9 is not managed") as caught:
            client.set(9, {"weight": "7"})
        assert not isinstance(caught.value, DaemonGone)
        assert caught.value.exit_code == 4
        assert client.set(42, {"weight": "7"}) == [view(weight=7)]


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (None, "does not answer"),
        (b'\x10\x00\x00\x00{"type":"Future"}', "another version"),
        (b"\x02\x00\x00\x00{}", "another version"),
        (struct.pack("<I", 1 << 31), "another version"),
        (status(), "another version"),
    ],
)
def test_a_daemon_that_answers_badly_or_not_at_all(fake: FakeDaemon, answer: object, what: str) -> None:
    fake.answers[wire.ListTasks] = answer  # type: ignore[assignment]
    with Client.open(patience_s=0.2) as client, pytest.raises(DaemonGone, match=what):
        client.ps()


def test_a_daemon_that_ends(start_fake: StartFake) -> None:
    first = start_fake()
    with Client.open() as client:
        assert client.ps()
        first.close()
        with pytest.raises(DaemonGone, match="ended"):
            client.ps()
    with pytest.raises(NoTargetError):
        Client.open()
    start_fake()
    with Client.open() as client:
        assert client.ps()


@pytest.mark.parametrize("version", ["0.3.0", ""])
def test_a_daemon_of_another_version_is_named_with_what_to_do(start_fake: StartFake, version: str) -> None:
    """Those before 0.4 tell their version only when they are asked for their status."""
    fake = start_fake()
    fake.status = status(version="0.3.0")
    fake.version = version
    with Client.open() as client:
        assert client.ps() == [view()]
        (note,) = client.notes
        assert note.startswith("process 7 is a daemon of Runlist 0.3.0, and this is ")
        assert "`runlist daemon --stop`" in note
        fake.answers[wire.Suspend] = wire.Failure("no such thing", ExitCode.USAGE)
        with pytest.raises(RunlistError, match=r"no such thing \(process 7 is a daemon of Runlist 0.3.0") as caught:
            client.suspend(42)
        assert caught.value.exit_code == ExitCode.USAGE
