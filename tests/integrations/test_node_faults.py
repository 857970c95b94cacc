"""`runlist node` beside a runtime that is away, slow or of another kind: what is in force stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from runlist import wire
from runlist.errors import RunlistError
from runlist.integrations.node import answers, gpu_memory
from runlist.integrations.node import runtime as runtime_module
from runlist.integrations.node.drop_ins import DropIns
from runlist.integrations.node.gpu_memory import GpuMemory
from runlist.integrations.node.runtime import Runtime, RuntimeGone
from runlist.views.structs import RuleFileView
from tests.fixtures.cri import FakeRuntime, container_id
from tests.fixtures.daemon import Commands, Daemon, wait_for
from tests.fixtures.fake_daemon import FakeDaemon, fake, gpu_view, start_fake, status
from tests.fixtures.node_agent import NodeAgent

__all__ = ["fake", "start_fake"]


def test_a_runtime_that_is_absent(short_path: Path) -> None:
    agent = NodeAgent(short_path, short_path / "nothing.sock")
    done = agent.once("--once")
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert "no socket of a container runtime" in done.stderr


def in_force(path: Path, lines: list[str]) -> wire.RulesInForce:
    """What a daemon answers that has lines about rules, the first about a file."""
    files = [RuleFileView(file=str(path), rules=1, trouble=line) for line in lines[:1]]
    return wire.RulesInForce(rules=[], files=files, notes=lines[1:])


def test_what_the_daemon_made_of_a_rule_is_said_once(runtime: FakeRuntime, agent: NodeAgent, fake: FakeDaemon) -> None:
    one, other = runtime.run("web-0"), runtime.run("web-1")
    path = agent.folder / f"kubernetes-{one}.toml"
    lines = [
        f"{path}: set.weight is lowered to 5",
        f"{path}:3: set.cap is lowered to 50",
        "/etc/rules.toml: it is gone",
    ]
    fake.answers[wire.ListRules] = in_force(path, lines)
    agent.start()
    agent.wait_for(one, other)
    wait_for(lambda: "set.weight" in agent.said, "the daemon is asked")
    (said,) = [line for line in agent.said.splitlines() if "lowered" in line]
    assert "web-0" in said
    assert said.endswith(f"the daemon ({one[:12]}): set.weight is lowered to 5; set.cap is lowered to 50")
    assert "it is gone" not in agent.said, "which is nothing of the agent's"
    fake.answers[wire.ListRules] = in_force(path, [])
    wait_for(lambda: f"the daemon ({one[:12]}): in order again" in agent.said, "it is asked again")
    assert agent.said.count("lowered to 5;") == 1


def test_what_the_daemon_made_of_many_rules_is_said_of_each(daemon: Daemon, commands: Commands) -> None:
    """Of which its status has the first ones alone."""
    several = [container_id(number) for number in range(30)]
    for one in several:
        path = commands.folder / "rules.d" / f"kubernetes-{one}.toml"
        path.write_text("[[rule]]\nset = { weight = 0 }\n")
    wait_for(lambda: len(answers.by_container(None)) >= 20, "the daemon to read them")
    wait_for(lambda: sorted(answers.by_container(None)) == sorted(several), "a line about each")


KILLED = """
import os, signal, sys
from pathlib import Path
from runlist.integrations.node.drop_ins import DropIns
os.rename = lambda *names, **folders: os.kill(os.getpid(), signal.SIGKILL)
files = DropIns(Path(sys.argv[1]))
files.take_up()
files.put("a" * 64, "[[rule]]")
"""


def test_what_was_not_whole_yet_is_hidden_from_all_and_removed_by_the_next(short_path: Path) -> None:
    folder = short_path / "rules.d"
    assert subprocess.run([sys.executable, "-c", KILLED, str(folder)], timeout=60).returncode == -signal.SIGKILL
    assert len(os.listdir(folder)) == 2, "a lock, and what it was about to write"
    assert all(name.startswith(".") for name in os.listdir(folder))
    files = DropIns(folder)
    files.take_up()
    assert files.there == set()
    assert len(os.listdir(folder)) == 1
    files.close()


def test_what_was_removed_is_written_anew(short_path: Path) -> None:
    files = DropIns(short_path / "rules.d")
    files.take_up()
    for _ in range(2):
        assert files.put("a" * 64, "[[rule]]\n")
        assert not files.put("a" * 64, "[[rule]]\n")
        assert files.there == {"a" * 64}
        files.remove("a" * 64)
        assert files.there == set()
        assert [name for name in os.listdir(files.path) if name.endswith(".toml")] == []
    files.close()


class Driver:
    """A plane whose GPUs have so many bytes; none that tells where there are none. Counts how often it was asked."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.asked = 0

    def census(self) -> Any:
        self.asked += 1
        if not self.sizes:
            raise RunlistError("no driver here")
        gpus = [SimpleNamespace(memory=size, uuid=f"GPU-{place}", index=place) for place, size in enumerate(self.sizes)]
        return SimpleNamespace(gpus=lambda: gpus, close=lambda: None)


@pytest.mark.parametrize(
    ("driver", "daemon", "size"),
    [
        ((80_000,), (), 80_000),
        ((80_000, 79_000), (10,), 79_000),  # nearly the same is the same
        ((80_000, 40_000), (), None),  # a part of which?
        ((80_000, 40_000), (80_000,), None),
        ((), (40_000, None), 40_000),
        ((), (), None),
    ],
)
def test_what_a_gpu_has_is_asked_of_the_driver_and_else_of_the_daemon(
    fake: FakeDaemon, driver: tuple[int, ...], daemon: tuple[int | None, ...], size: int | None
) -> None:
    fake.status = status(gpus=[gpu_view(memory_size_bytes=one) for one in daemon])
    plane = Driver(*driver)
    memory = GpuMemory(plane, None)  # type: ignore[arg-type]
    assert memory() == size
    fake.status = status(gpus=[gpu_view(memory_size_bytes=1)])
    assert memory() == size, "it stays, and where nobody tells is not asked again at once"
    assert plane.asked == 1


def test_whom_nobody_told_asks_again_later(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "AGAIN_S", 0.0)
    fake.status = status(gpus=[])
    memory = GpuMemory(Driver(), None)  # type: ignore[arg-type]
    assert memory() is None
    fake.status = status(gpus=[gpu_view(memory_size_bytes=40_000)])
    assert memory() == 40_000


def test_a_runtime_that_is_restarted_takes_nothing_from_anybody(runtime: FakeRuntime, agent: NodeAgent) -> None:
    one = runtime.run("web-0")
    agent.start()
    agent.wait_for(one)
    for times in range(1, 4):
        runtime.stop()
        wait_for(partial(agent.has_said, "what is in force stays", times))
        assert one in agent.rules
        runtime.start()
        later = runtime.run("web-1")
        agent.wait_for(one, later)
        runtime.exit(later)
        agent.wait_for(one)
    assert agent.said.count("the container runtime: in order again") == 3


def test_a_runtime_that_has_not_yet_recovered(runtime: FakeRuntime, agent: NodeAgent) -> None:
    """One that restarts may first name none of its containers."""
    one = runtime.run("web-0")
    agent.start()
    agent.wait_for(one)
    kept = dict(runtime.containers)
    seen = len(runtime.calls)
    runtime.containers.clear()
    wait_for(lambda: len(runtime.calls) > seen)
    runtime.containers.update(kept)
    time.sleep(2.0)
    assert one in agent.rules


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, "disabled_plugins"),
        (grpc.StatusCode.UNAVAILABLE, "cannot be asked"),
        (grpc.StatusCode.PERMISSION_DENIED, "cannot be asked"),
        (grpc.StatusCode.INTERNAL, "cannot be asked"),
    ],
)
def test_a_runtime_that_refuses_is_said_once(
    runtime: FakeRuntime, agent: NodeAgent, status: grpc.StatusCode, said: str
) -> None:
    one = runtime.run("web-0")
    agent.start()
    agent.wait_for(one)
    runtime.refusal = status
    wait_for(lambda: said in agent.said)
    seen = len(runtime.calls)
    wait_for(lambda: len(runtime.calls) >= seen + 3)
    assert agent.said.count(said) <= 2, "its list, and then its version"
    assert "\x1b" not in agent.said
    assert one in agent.rules
    runtime.refusal = None
    other = runtime.run("web-1")
    agent.wait_for(one, other)


@pytest.fixture
def two(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeRuntime, FakeRuntime]]:
    """Two runtimes where one is looked for: Docker has a containerd of its own, with or without CRI."""
    made = [FakeRuntime(short_path / f"{name}.sock").start() for name in ("first", "second")]
    monkeypatch.setattr(runtime_module, "SOCKETS", tuple(one.socket for one in made))
    yield made[0], made[1]
    for one in made:
        one.stop()


def test_a_runtime_that_speaks_no_cri_is_passed_over(two: tuple[FakeRuntime, FakeRuntime]) -> None:
    first, second = two
    first.refusal = grpc.StatusCode.UNIMPLEMENTED
    there = second.run("web-0")
    asking = Runtime()
    assert [one.id for one in asking.containers()] == [there]
    second.refusal = grpc.StatusCode.UNIMPLEMENTED
    asking.close()
    with pytest.raises(RuntimeGone, match="disabled_plugins"):
        Runtime().containers()


def test_of_two_runtimes_the_one_that_has_pods_is_the_nodes(two: tuple[FakeRuntime, FakeRuntime]) -> None:
    """k3s brings its own, and a distribution's may be there, too."""
    first, second = two
    asking = Runtime()
    assert asking.containers() == []
    there = second.run("web-0")
    assert [one.id for one in asking.containers()] == [there]
    first.run("other")
    assert [one.id for one in asking.containers()] == [there]
    asking.close()


def test_a_socket_that_nobody_serves_any_more_hides_no_runtime(two: tuple[FakeRuntime, FakeRuntime]) -> None:
    """A runtime that is stopped for another one leaves its socket."""
    first, second = two
    first.stop()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(first.socket))
    asking = Runtime()
    with pytest.raises(RuntimeGone, match="cannot be asked"):
        asking.containers()  # it may be the node's, as the other one has no pods
    there = second.run("web-0")
    assert [one.id for one in asking.containers()] == [there]
    asking.close()


def test_another_runtime_is_not_asked_while_the_first_one_is_away(two: tuple[FakeRuntime, FakeRuntime]) -> None:
    """It would know none of the containers, and all would count as gone."""
    first, _ = two
    there = first.run("web-0")
    asking = Runtime()
    assert [one.id for one in asking.containers()] == [there]
    first.stop()
    for _ in range(2):
        with pytest.raises(RuntimeGone):
            asking.containers()
    first.start()
    assert [one.id for one in asking.containers()] == [there]
    asking.close()


def test_a_runtime_that_hangs_does_not_keep_the_agent_from_ending(runtime: FakeRuntime, agent: NodeAgent) -> None:
    one = runtime.run("web-0")
    agent.start()
    agent.wait_for(one)
    runtime.delay_s = 20.0
    seen = len(runtime.calls)
    wait_for(lambda: len(runtime.calls) > seen)
    began = time.monotonic()
    assert agent.stop() == 0
    assert time.monotonic() - began < 15.0
    assert one in agent.rules
    runtime.delay_s = 0.0


def test_something_else_that_listens(short_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(short_path / "other.sock"))
    listener.listen()
    agent = NodeAgent(short_path, short_path / "other.sock").start()
    connection, _ = listener.accept()
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello\r\n" * 100)
    connection.close()
    wait_for(lambda: "what is in force stays" in agent.said)
    listener.close()
    assert agent.stop() == 0
    assert "Traceback" not in agent.said


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a socket away")
def test_a_runtime_of_another_user_is_not_believed(runtime: FakeRuntime, agent: NodeAgent) -> None:
    runtime.run("web-0")
    os.chown(runtime.socket, 65534, 65534)
    done = agent.once("--once")
    assert done.returncode == 3
    assert not list(agent.folder.glob("*.toml"))


def test_a_runtime_in_a_folder_of_others_is_not_believed(short_path: Path) -> None:
    """They could put a socket of their own in its place."""
    (short_path / "theirs").mkdir()
    runtime = FakeRuntime(short_path / "theirs" / "cri.sock").start()
    agent = NodeAgent(short_path, runtime.socket)
    runtime.run("web-0")
    runtime.socket.parent.chmod(0o777)
    done = agent.once("--once")
    runtime.stop()
    assert done.returncode == 3
    assert f"{runtime.socket} is not asked: others can write" in done.stderr
    assert not list(agent.folder.glob("*.toml"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a socket away")
def test_a_runtime_that_another_user_took_the_place_of_is_not_believed(runtime: FakeRuntime, agent: NodeAgent) -> None:
    one = runtime.run("web-0")
    agent.start()
    agent.wait_for(one)
    runtime.stop()
    runtime.start()
    os.chown(runtime.socket, 65534, 65534)
    theirs = runtime.run("web-1", {"runlist.dev/class": "latency"})
    wait_for(lambda: "its word is not taken" in agent.said, "the other one to be refused")
    assert set(agent.rules) == {one}
    os.chown(runtime.socket, 0, 0)
    agent.wait_for(one, theirs)


def test_the_folder_is_made_again_and_filled(runtime: FakeRuntime, agent: NodeAgent) -> None:
    """Whoever ends the daemon may remove its folder, too."""
    one = runtime.run("web-0")
    agent.start()
    agent.wait_for(one)
    agent.folder.rename(agent.folder.with_name("away"))
    agent.wait_for(one)
    (agent.folder / f"kubernetes-{one}.toml").unlink()
    agent.wait_for(one)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a disk")
def test_a_disk_that_is_full_has_room_again_when_containers_go(runtime: FakeRuntime, agent: NodeAgent) -> None:
    agent.folder.mkdir(mode=0o700)
    small = ["mount", "-t", "tmpfs", "-o", "mode=700,size=16k,nr_inodes=64", "none", str(agent.folder)]
    if subprocess.run(small, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        first = [runtime.run(f"first-{n}") for n in range(3)]  # with the lock's none: a page each
        agent.start()
        agent.wait_for(*first)
        (agent.folder / "others").write_bytes(bytes(4096))  # somebody filled it
        new = runtime.run("new")
        wait_for(lambda: "cannot be written" in agent.said, "a full disk")
        assert set(agent.rules) == set(first)
        runtime.exit(first[0])
        wait_for(lambda: set(agent.rules) == {*first[1:], new}, "the new one in the room of the one that went")
    finally:
        agent.stop()
        subprocess.run(["umount", "-l", str(agent.folder)], check=True)


def test_a_folder_of_somebody_else_is_refused(runtime: FakeRuntime, agent: NodeAgent) -> None:
    runtime.run("web-0")
    agent.folder.mkdir()
    agent.folder.chmod(0o777)
    done = agent.once("--once")
    assert done.returncode == 3
    assert not list(agent.folder.iterdir())
