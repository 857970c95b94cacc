"""Ray's fractions kept: a cluster of two nodes on this machine, with an emulated GPU and a daemon each."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from runlist.emulated import EmulatedGpu
from runlist.views.structs import TaskView
from tests.fixtures.daemon import ROOT, Commands, Daemon, wait_for
from tests.fixtures.node import needs_modules

pytestmark = [needs_modules("ray"), pytest.mark.timeout(300)]

WATCHED_S = 6.0
TOLERANCE = 0.05  # two cores, shared by all of it; the claim belongs to `python -m bench ray_shares`


@dataclass
class Node:
    """One of Ray's nodes."""

    name: str
    environment: Mapping[str, str]
    daemon: Daemon
    gpus: int
    handle: Any = None

    def tasks(self) -> dict[int, TaskView]:
        """What its daemon manages, by process. The two daemons know nothing of one another."""
        return {task.pid: task for task in self.daemon.client.ps()}

    def here(self) -> dict[str, Any]:
        """The options of a task that is to run here."""
        return {"resources": {self.name: 0.001}}


@contextlib.contextmanager
def node(name: str, gpus: int) -> Iterator[Node]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rl-")))
        gpu = stack.enter_context(EmulatedGpu(folder / "gpu", gpus=gpus))
        commands = Commands({**os.environ, **gpu.environment()}, folder)
        stack.callback(commands.close)
        own = {key: value for key, value in commands.environment.items() if os.environ.get(key) != value}
        with mock.patch.dict(os.environ, own):
            daemon = stack.enter_context(Daemon(commands))
        yield Node(name, {**own, "NODE": name, "PYTHONPATH": f"{ROOT}{os.pathsep}{own['PYTHONPATH']}"}, daemon, gpus)


def add(cluster: Any, node: Node, **variables: str) -> None:
    """Have a node join."""
    node.handle = cluster.add_node(
        num_cpus=2,
        num_gpus=node.gpus,
        resources={node.name: 1},
        env_vars={**node.environment, **variables},
        object_store_memory=80 << 20,
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Any, Node, Node]]:
    from ray.cluster_utils import Cluster

    with node("A", 1) as first, node("B", 2) as second:
        made = Cluster()
        for one in (first, second):
            add(made, one)
        yield made, first, second
        import ray

        ray.shutdown()
        made.shutdown()


@pytest.fixture
def connect(cluster: tuple[Any, Node, Node]) -> Iterator[Any]:
    """Connects to the cluster, with a runtime environment."""
    import ray

    def connected(**options: Any) -> Any:
        ray.init(address=cluster[0].address, log_to_driver=False, **options)
        return ray

    yield connected
    ray.shutdown()
    for one in cluster[1:]:
        wait_for(lambda one=one: not one.daemon.client.ps(), "the end of all that was managed", 60)


@pytest.fixture
def nodes(cluster: tuple[Any, Node, Node]) -> tuple[Node, Node]:
    return cluster[1], cluster[2]


def with_gpus(**options: Any) -> dict[str, Any]:
    import runlist.ray

    return {"runtime_env": runlist.ray.runtime_env(**options)}


def shares(node: Node, pids: list[int], seconds: float = WATCHED_S) -> list[float]:
    """The part of each process in the GPU time of all of them, by the daemon's account."""

    def worked() -> list[float]:
        tasks = node.tasks()
        return [tasks[pid].gpu_seconds_held for pid in pids]

    before = worked()
    time.sleep(seconds)
    each = [after - was for after, was in zip(worked(), before, strict=True)]
    return [one / sum(each) for one in each]


def working(ray: Any, node: Node, parts: list[float]) -> tuple[list[Any], list[int]]:
    """Actors with these parts of one GPU, which work; and their processes."""
    from tests.fixtures.ray_tasks import Actor

    actors = [Actor.options(num_gpus=part, **node.here()).remote() for part in parts]
    pids = [pid for pid, *_ in ray.get([actor.who.remote() for actor in actors])]
    assert ray.get([actor.work.remote() for actor in actors]) == [""] * len(actors)
    wait_for(lambda: node.tasks().keys() >= set(pids))
    assert len({node.tasks()[pid].gpu for pid in pids}) == 1
    return actors, pids


def test_four_quarters(connect: Any, nodes: tuple[Node, Node]) -> None:
    ray = connect(**with_gpus())
    _, pids = working(ray, nodes[0], [0.25] * 4)
    assert [nodes[0].tasks()[pid].weight for pid in pids] == [25] * 4
    assert shares(nodes[0], pids) == pytest.approx([0.25] * 4, abs=TOLERANCE)


def test_three_quarters_and_one_that_come_and_go(connect: Any, nodes: tuple[Node, Node]) -> None:
    ray = connect(**with_gpus(task_class="batch"))
    actors, pids = working(ray, nodes[0], [0.75, 0.25])
    assert [(task.task_class, task.weight) for task in map(nodes[0].tasks().get, pids)] == [
        ("batch", 75),
        ("batch", 25),
    ]
    assert shares(nodes[0], pids) == pytest.approx([0.75, 0.25], abs=TOLERANCE)
    ray.kill(actors[0])
    wait_for(lambda: pids[0] not in nodes[0].tasks())
    _, more = working(ray, nodes[0], [0.5])
    assert nodes[0].tasks()[more[0]].weight == 50
    assert shares(nodes[0], [pids[1], more[0]]) == pytest.approx([1 / 3, 2 / 3], abs=TOLERANCE)


def test_memory_and_cap(connect: Any, nodes: tuple[Node, Node]) -> None:
    from tests.fixtures.ray_tasks import Actor

    ray = connect(**with_gpus(memory=True, cap=True))
    actor = Actor.options(num_gpus=0.25, **nodes[0].here()).remote()
    whole = 150_754_820_096  # of an emulated GPU
    assert ray.get(actor.take.remote(whole // 4 + (64 << 20))) == "CUDA_ERROR_OUT_OF_MEMORY"
    assert ray.get(actor.take.remote(whole // 4 - (64 << 20))) == ""
    assert ray.get(actor.take.remote(128 << 20)) == "CUDA_ERROR_OUT_OF_MEMORY"
    assert ray.get(actor.room.remote())[1] == pytest.approx(whole // 4, abs=4 << 20)
    task = managed(nodes[0], ray.get(actor.who.remote())[0])
    assert (task.weight, task.cap_percent, task.memory_limit_bytes) == (25, 25, whole // 4)
    ray.kill(actor)
    other = Actor.options(num_gpus=1, **nodes[0].here()).remote()
    assert ray.get(other.take.remote(whole // 2)) == ""
    task = managed(nodes[0], ray.get(other.who.remote())[0])
    assert (task.weight, task.cap_percent) == (100, None)


def managed(node: Node, pid: int) -> TaskView:
    wait_for(lambda: pid in node.tasks(), f"{pid} is managed")
    return node.tasks()[pid]


def test_several_gpus_and_none(connect: Any, nodes: tuple[Node, Node]) -> None:
    from tests.fixtures.ray_tasks import Actor

    ray = connect(**with_gpus(cap=True))
    both = Actor.options(num_gpus=2, **nodes[1].here()).remote()
    none = Actor.options(num_gpus=0, **nodes[1].here()).remote()
    (pid, where, visible), (other, *_, hidden) = ray.get([both.who.remote(), none.who.remote()])
    assert (where, sorted(visible.split(",")), hidden) == ("B", ["0", "1"], None)
    assert ray.get(both.work.remote()) == ""
    assert (managed(nodes[1], pid).weight, managed(nodes[1], pid).cap_percent) == (100, None)
    assert nodes[1].tasks().keys() == {pid} != {other}
    assert not nodes[0].tasks()


def test_async_actors(connect: Any, nodes: tuple[Node, Node]) -> None:
    from tests.fixtures.ray_tasks import AsyncActor

    ray = connect(**with_gpus())
    actor = AsyncActor.options(num_gpus=0.4, **nodes[0].here()).remote()
    assert ray.get(actor.work.remote()) == ""
    answers = ray.get([actor.who.remote() for _ in range(5)])
    assert len(set(answers)) == 1
    assert managed(nodes[0], answers[0][0]).weight == 40


def test_a_worker_that_is_used_again(connect: Any, nodes: tuple[Node, Node]) -> None:
    """Another part for the next task, also after one that raised. Ray gives tasks without a GPU other workers."""
    from tests.fixtures.ray_tasks import reused

    ray = connect(**with_gpus(cap=True))

    def run(part: float, **options: Any) -> int:
        return int(ray.get(reused.options(num_gpus=part, **nodes[0].here()).remote(**options))[0])

    pid = run(0.25)
    assert (managed(nodes[0], pid).weight, managed(nodes[0], pid).cap_percent) == (25, 25)
    assert run(0.5) == pid
    assert (managed(nodes[0], pid).weight, managed(nodes[0], pid).cap_percent) == (50, 50)
    with pytest.raises(KeyError):
        run(0.3, fail=True)
    assert managed(nodes[0], pid).weight == 30
    other = run(0)
    assert nodes[0].tasks().keys() == {pid} != {other}
    assert run(1) == pid
    assert managed(nodes[0], pid).weight == 100


def test_tasks_one_after_another_and_at_once(connect: Any, nodes: tuple[Node, Node]) -> None:
    """As Ray has it: the worker of a task with a GPU ends with it."""
    from tests.fixtures.ray_tasks import once

    ray = connect(**with_gpus())
    tasks = [once.options(num_gpus=part, **nodes[0].here()).remote(4.0) for part in (0.25, 0.5)]
    wait_for(lambda: sorted(task.weight for task in nodes[0].tasks().values()) == [25, 50], "both are managed", 60)
    assert len({pid for pid, *_ in ray.get(tasks)}) == 2
    wait_for(lambda: not nodes[0].tasks())


def test_a_worker_that_is_killed(connect: Any, nodes: tuple[Node, Node]) -> None:
    from ray.exceptions import RayActorError

    ray = connect(**with_gpus())
    (first, second), pids = working(ray, nodes[0], [0.25, 0.5])
    with pytest.raises(RayActorError):
        ray.get(first.die.remote())
    wait_for(lambda: nodes[0].tasks().keys() == {pids[1]})
    assert ray.get(second.who.remote())[0] == pids[1]


def test_who_was_let_go_is_managed_again_with_the_next_task(connect: Any, nodes: tuple[Node, Node]) -> None:
    from tests.fixtures.ray_tasks import reused

    ray = connect(**with_gpus())
    task = reused.options(num_gpus=0.25, **nodes[1].here())
    pid, *_ = ray.get(task.remote())
    assert managed(nodes[1], pid).weight == 25
    nodes[1].daemon.client.release()
    assert not nodes[1].tasks()
    assert ray.get(task.remote())[0] == pid
    assert managed(nodes[1], pid).weight == 25


def test_tasks_run_without_a_daemon(connect: Any, nodes: tuple[Node, Node]) -> None:
    """None can be reached or started where it is looked for."""
    from tests.fixtures.ray_tasks import reused

    made = with_gpus()["runtime_env"]
    ray = connect(runtime_env={**made, "env_vars": {"RUNLIST_SOCKET": "/proc/none/daemon.sock"}})
    pid, where, visible = ray.get(reused.options(num_gpus=0.25, **nodes[0].here()).remote())
    assert (where, visible) == ("A", "0")
    assert pid not in nodes[0].tasks()


def test_a_script_that_knows_nothing_of_it(nodes: tuple[Node, Node], cluster: tuple[Any, Node, Node]) -> None:
    """By the environment of the script alone, memory too."""
    script = f"""
import ray
from tests.fixtures.ray_tasks import Actor
ray.init(address={cluster[0].address!r}, log_to_driver=False)
actor = Actor.options(num_gpus=0.5, resources={{"A": 0.001}}).remote()
whole = 150_754_820_096
print(ray.get(actor.take.remote(whole // 2 + (64 << 20))), ray.get(actor.take.remote(whole // 2 - (64 << 20))))
"""
    variables = {"RAY_RUNTIME_ENV_HOOK": "runlist.ray.extended", "RUNLIST_RAY": "memory", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **variables}, text=True, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["CUDA_ERROR_OUT_OF_MEMORY"]


def test_on_all_workers_of_a_node_without_a_word_in_the_script(connect: Any, cluster: tuple[Any, Node, Node]) -> None:
    """And a node that dies takes nothing from the others."""
    from tests.fixtures.ray_tasks import Actor, names

    made, first, second = cluster
    made.remove_node(second.handle)
    add(made, second, RAY_preload_python_modules="runlist.ray.everywhere", RUNLIST_RAY="cap,class=batch")
    ray = connect()
    assert ray.get(names.options(**first.here()).remote()) == ("", False)
    assert ray.get(names.options(**second.here()).remote()) == ("cap,class=batch", True)
    there = Actor.options(num_gpus=0.25, **second.here()).remote()
    assert ray.get(there.work.remote(), timeout=60) == ""
    task = managed(second, ray.get(there.who.remote())[0])
    assert (task.task_class, task.weight, task.cap_percent) == ("batch", 25, 25)
    here = Actor.options(num_gpus=0.25, **first.here()).remote()
    assert ray.get(here.work.remote()) == ""
    assert not first.tasks()  # nobody asked there
    made.remove_node(second.handle, allow_graceful=False)
    wait_for(lambda: not second.tasks(), "the tasks of the node that died are gone", 60)
    assert ray.get(here.who.remote())[1] == "A"
    add(made, second)
