"""`runlist node` beside a real containerd: pods in the host's network, with an image that is made here."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runlist.integrations.node.cgroups import mount
from runlist.proc.cgroup import cgroup_of
from tests.fixtures import compiler
from tests.fixtures.containerd import Containerd, containerd, missing
from tests.fixtures.daemon import short_path, wait_for
from tests.fixtures.effort import TIMES
from tests.fixtures.node_agent import NodeAgent

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "can run"),
    pytest.mark.timeout(60 * max(2, TIMES)),
]
__all__ = ["short_path"]

RESTARTS = 3 if TIMES == 1 else 50


@pytest.fixture
def engine(short_path: Path) -> Iterator[Containerd]:
    folder = short_path / "containerd"
    folder.mkdir()
    with containerd(folder, compiler.compiler(*compiler.C)[0]) as one:
        yield one
    for top in (*mount().parent.glob("*/kubepods"), mount() / "kubepods"):
        for path, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)


@pytest.fixture
def agent(short_path: Path, engine: Containerd) -> Iterator[NodeAgent]:
    one = NodeAgent(short_path, engine.socket)
    yield one
    if one.process is not None:
        one.process.kill()
        one.process.wait()


def _pid_in(container: str) -> int:
    """A process whose cgroup names the container, as the daemon finds it."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    return next((pid for pid in pids if cgroup_of(pid)[1] == container), 0)


def test_a_pod_that_runs_already_and_others_that_come_and_go(engine: Containerd, agent: NodeAgent) -> None:
    sandbox = engine.pod("web-0", {"runlist.dev/weight": "20", "gpu-fraction": "2"}, "shop", "u1")
    before = engine.container(sandbox, "main")
    agent.start()
    agent.wait_for(before)
    assert agent.rules[before]["labels"] == {"pod": "web-0", "namespace": "shop", "container": "main"}
    assert agent.rules[before]["set"] == {"weight": "20", "group": "pod:shop/web-0/u1"}
    assert _pid_in(before), "the id is the one that the kernel tells"
    assert "gpu-fraction=2 is not taken" in agent.said
    wait_for(lambda: "ready" in agent.said)
    assert "is polled" not in agent.said, "cgroups are watched"
    took = []
    for number in range(5):
        pod = engine.pod(f"batch-{number}", {"runlist.dev/class": "batch"})
        began = time.monotonic()
        one = engine.container(pod, "main")
        agent.wait_for(before, one)
        took.append(time.monotonic() - began)
        engine.remove(one)
        agent.wait_for(before)
        engine.remove_pod(pod)
    assert min(took) < 1.0, took
    assert agent.stop() == 0
    assert "Traceback" not in agent.said


def test_containerd_is_restarted_and_its_containers_go_on(engine: Containerd, agent: NodeAgent) -> None:
    one = engine.container(engine.pod("web-0", {"runlist.dev/weight": "20"}), "main")
    agent.start()
    agent.wait_for(one)
    pid = _pid_in(one)
    had = 0
    for times in range(RESTARTS):
        engine.stop()
        assert set(agent.rules) == {one}
        engine.start()
        later = engine.container(engine.pod(f"later-{times}", {}), "main")
        agent.wait_for(one, later)
        engine.remove(later)
        engine.remove_pod(engine.sandboxes[-1])
        agent.wait_for(one)
        had = had or _descriptors(agent)
    assert _pid_in(one) == pid
    assert _descriptors(agent) <= had + 2
    assert agent.stop() == 0
    assert "Traceback" not in agent.said


def _descriptors(agent: NodeAgent) -> int:
    assert agent.process is not None
    return len(os.listdir(f"/proc/{agent.process.pid}/fd"))


def test_a_container_that_ends_by_itself(engine: Containerd, agent: NodeAgent) -> None:
    one = engine.container(engine.pod("web-0", {}), "main")
    agent.start()
    agent.wait_for(one)
    os.kill(_pid_in(one), 9)
    agent.wait_for()
