"""Pods by annotation, all the way: cgroups as a kubelet makes them, a runtime that names them, the agent, the daemon,
and processes at work on an emulated GPU.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.integrations.node.cgroups import mount
from runlist.workloads.process import WorkloadProcess
from tests.conftest import Tenant
from tests.fixtures.api_server import ApiServer
from tests.fixtures.cri import FakeRuntime
from tests.fixtures.daemon import Commands, Daemon, commands, needs_root, short_path, start_daemon, wait_for
from tests.fixtures.node_agent import NodeAgent, runtime

pytestmark = needs_root
__all__ = ["commands", "runtime", "short_path", "start_daemon"]

Place = Callable[[str, int], None]
Bounded = Callable[[str], tuple[Daemon, WorkloadProcess]]


@pytest.fixture
def place() -> Iterator[Place]:
    """Puts a process into the cgroup of a container."""
    top = mount() / "kubepods" / f"besteffort-{os.getpid()}"

    def put(container: str, pid: int) -> None:
        folder = top / f"pod{pid}" / container
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text(str(pid))

    yield put
    for path, _, files in os.walk(top, topdown=False):
        if "cgroup.procs" in files:
            for pid in Path(path, "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (mount() / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            os.rmdir(path)
    with contextlib.suppress(OSError):
        os.rmdir(top.parent)


@pytest.fixture
def server(short_path: Path) -> Iterator[ApiServer]:
    one = ApiServer(short_path)
    yield one
    one.close()


@pytest.fixture
def agent(short_path: Path, runtime: FakeRuntime, server: ApiServer, commands: Commands) -> Iterator[NodeAgent]:
    environment = {**commands.environment, "KUBECONFIG": str(server.config), "NODE_NAME": "node-1"}
    one = NodeAgent(commands.socket.parent, runtime.socket, environment)
    yield one
    if one.process is not None:
        one.process.kill()
        one.process.wait()


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    return tmp_path / "rules.toml"


@pytest.fixture
def bounded(rules: Path, commands: Commands, start_daemon: Callable[..., Daemon], tenant: Tenant) -> Bounded:
    """Starts a daemon with this bound in its rules, and a process at work."""

    def start(bound: str) -> tuple[Daemon, WorkloadProcess]:
        rules.write_text(f"[[bound]]\n{bound}")
        daemon = start_daemon("--rules", str(rules))
        process = tenant("batch", "--kernel-ms", "5", environment=commands.environment)
        process.run()
        return daemon, process

    return start


def _weights(daemon: Daemon) -> dict[int, int]:
    return {task.pid: task.weight for task in daemon.client.ps()}


def test_four_pods_have_what_their_annotations_say(
    commands: Commands, start_daemon: Callable[..., Daemon], runtime: FakeRuntime, agent: NodeAgent, tenant: Tenant,
    place: Place, server: ApiServer,
) -> None:  # fmt: skip
    daemon = start_daemon()
    agent.start()
    wait_for(lambda: "ready" in agent.said)
    wanted: dict[int, int] = {}
    for weight in (10, 20, 30, 40):
        process = tenant("batch", "--kernel-ms", "5", environment=commands.environment)
        process.run()
        container = runtime.run(f"pod-{weight}", {"gpu-fraction": str(weight / 100)}, uid=f"u{weight}")
        began = time.monotonic()
        place(container, process.pid)
        wanted[process.pid] = weight
        wait_for(lambda: _weights(daemon) == wanted, f"the weight of pod-{weight}")
        assert time.monotonic() - began < 5.0
    labels = {task.pid: task.labels for task in daemon.client.ps()}
    assert {pid: found["pod"] for pid, found in labels.items()} == {pid: f"pod-{one}" for pid, one in wanted.items()}
    time.sleep(1.0)
    before = {task.pid: task.gpu_seconds_held for task in daemon.client.ps()}
    time.sleep(10.0)
    used = {task.pid: task.gpu_seconds_held - before[task.pid] for task in daemon.client.ps()}
    shares = {wanted[pid]: 100 * one / sum(used.values()) for pid, one in used.items()}
    print("shares by fraction:", shares)  # how near they come is measured where the cores are not shared, too
    assert shares[40] > shares[10]

    first = next(iter(wanted))
    server.put("pod-10", "u10", {"runlist.dev/weight": "77"})
    wait_for(lambda: _weights(daemon)[first] == 77, "a changed annotation, for what runs")


def test_what_is_lowered_to_a_bound_is_told(
    bounded: Bounded, runtime: FakeRuntime, agent: NodeAgent, place: Place, server: ApiServer
) -> None:
    daemon, process = bounded('labels = { namespace = "team-*" }\nclass = ["normal", "batch"]\nweight = 200\n')
    asked = {"runlist.dev/weight": "9999", "runlist.dev/class": "latency"}
    place(runtime.run("greedy", asked, namespace="team-a", uid="u1"), process.pid)
    agent.start()
    wait_for(lambda: _weights(daemon) == {process.pid: 200})
    (task,) = daemon.client.ps()
    assert task.task_class == "normal"
    wait_for(lambda: server.events, "the event")
    (event,) = server.events
    assert (event["reason"], event["involvedObject"]["name"]) == ("RunlistLowered", "greedy")
    assert "weight = 9999 is beyond rules.toml:1" in event["message"]
    assert "kubernetes-" not in event["message"]
    assert daemon.client.status().troubles == [], "for which an alert would be raised, as often as a pod likes"


def test_what_is_taken_away_or_lowered_counts_for_what_runs(
    bounded: Bounded, commands: Commands, runtime: FakeRuntime, agent: NodeAgent, place: Place, server: ApiServer,
    rules: Path,
) -> None:  # fmt: skip
    daemon, process = bounded('labels = { namespace = "shop" }\nweight = 500\n')
    asked = {"weight": "400", "class": "latency", "cap": "40", "memory": "8Gi"}
    server.put("web-0", "u1", {f"runlist.dev/{key}": value for key, value in asked.items()})
    agent.start()
    place(runtime.run("web-0", uid="u1"), process.pid)
    wait_for(lambda: _settings(daemon) == [(400, "latency", 40.0, 8 << 30)])
    rules.write_text(
        '[[bound]]\nlabels = { namespace = "shop" }\nweight = 50\ncap = 20\nmemory = "4G"\nclass = "batch"\n'
    )
    assert commands.run("rules", "reload").returncode == 0
    wait_for(lambda: _settings(daemon) == [(50, "batch", 20.0, 4 << 30)])
    rules.write_text("")
    assert commands.run("rules", "reload").returncode == 0
    wait_for(lambda: _settings(daemon) == [(400, "latency", 40.0, 8 << 30)])
    server.put("web-0", "u1", {})
    wait_for(lambda: _settings(daemon) == [(100, "normal", None, None)])


def _settings(daemon: Daemon) -> list[tuple[object, ...]]:
    return [(one.weight, one.task_class, one.cap_percent, one.memory_limit_bytes) for one in daemon.client.ps()]
