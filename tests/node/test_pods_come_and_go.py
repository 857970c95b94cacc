"""Pods that come and go with a process each on an emulated GPU, while the daemon, the agent, the kubelet and the
container runtime are restarted: every process has its pod's settings, none is kept beyond its end, nothing grows.

`make test-node` has some rounds; RUNLIST_CHECKS_TIMES=20 (`make checks`) has 1,000 pods and 50 restarts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runlist.integrations.kubernetes import names
from runlist.integrations.node.cgroups import mount
from tests.conftest import ON_NVIDIA
from tests.fixtures import compiler
from tests.fixtures.cri import FakeRuntime
from tests.fixtures.daemon import ROOT, Commands, Daemon, commands, needs_root, remove_cgroup, short_path, wait_for
from tests.fixtures.effort import TIMES
from tests.fixtures.kubelet import Container, Kubelet
from tests.fixtures.node_agent import NodeAgent, runtime
from tests.fixtures.plugin import SHARE

pytestmark = [
    needs_root,
    pytest.mark.skipif(ON_NVIDIA, reason="a thousand processes on the emulated GPU"),
    pytest.mark.timeout(120 * TIMES),
]
__all__ = ["commands", "runtime", "short_path"]

ROUNDS, EACH = (5, 6) if TIMES == 1 else (50, 20)
SHARES = (2, 3, 4, 6)
"""Percent of a GPU, in turn: more than all pods of a round ask for is there."""

MORE_DESCRIPTORS, MORE_MB = 8, 16
"""A process may have so much more than after its first rounds."""

_TENANT = """
#include <dlfcn.h>
#include <unistd.h>
int main(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context;
    if (!cuda || ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0)) return 1;
    if (((int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0)) return 2;
    for (;;) pause();
}
"""
_ENTER = 'echo 0 > "$1/cgroup.procs" && exec "$2"'


@dataclass
class Pod:
    """A pod that lives: its container, what the kubelet granted, its process and its cgroup."""

    name: str
    container: str
    granted: Container
    process: subprocess.Popen[bytes]
    cgroup: Path

    @property
    def expected(self) -> tuple[str, int]:
        """Its name and its weight: what it was granted."""
        (answer,) = self.granted.answers.values()
        return self.name, int(answer.annotations[names.GRANTED_SHARE])


@dataclass
class Size:
    """What a process has of what could grow."""

    descriptors: int
    resident_mb: float

    @classmethod
    def of(cls, pid: int) -> Size:
        (kib,) = re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        return cls(len(os.listdir(f"/proc/{pid}/fd")), int(kib) / 1024)


class Node:
    """The node: what Runlist runs there, and what it meets."""

    def __init__(self, commands: Commands, runtime: FakeRuntime, kubelet: Kubelet, tenant: Path) -> None:
        self.commands, self.runtime, self.kubelet, self.tenant = commands, runtime, kubelet, tenant
        self.top = mount() / "kubepods" / f"burstable-{os.getpid()}"
        self.agent = NodeAgent(commands.socket.parent, runtime.socket, commands.environment)
        self.pods: list[Pod] = []
        self.sizes: dict[tuple[str, int], tuple[Size, Size]] = {}
        """Of each process, when it was first measured and when last."""
        self.numbers = itertools.count()
        self.daemons = contextlib.ExitStack()
        self.start_daemon()
        self.agent.start()
        self.plugin = commands.start("plugin", "--folder", str(kubelet.folder))

    # -- pods ---------------------------------------------------------------------------------------

    def run_pod(self) -> None:
        """As a kubelet does: admit it, have the runtime make it, and start its process in its cgroup."""
        number = next(self.numbers)
        name = f"pod-{number}"
        granted = self.kubelet.admit(name, {SHARE: SHARES[number % len(SHARES)]}, namespace="shop")
        (answer,) = granted.answers.values()
        container = self.runtime.container(self.runtime.pod(name), annotations=dict(answer.annotations))
        cgroup = self.top / f"pod{number}" / container
        cgroup.mkdir(parents=True)
        words = ["sh", "-c", _ENTER, "enter", str(cgroup), str(self.tenant)]
        process = subprocess.Popen(words, env=self.commands.environment, cwd=ROOT)
        self.pods.append(Pod(name, container, granted, process, cgroup))

    def end_pod(self, pod: Pod) -> None:
        pod.process.kill()
        pod.process.wait()
        self.runtime.exit(pod.container)
        self.runtime.remove(pod.container)
        self.kubelet.remove(pod.granted)
        remove_cgroup(pod.cgroup)
        pod.cgroup.parent.rmdir()
        self.pods.remove(pod)

    # -- what there must be ----------------------------------------------------------------------------

    def settle(self) -> None:
        """Every pod's process has its pod's settings, and there is nothing else."""
        expected = {pod.process.pid: pod.expected for pod in self.pods}
        wait_for(lambda: self._seen() == expected, f"exactly {len(expected)} tasks with what they were granted", 60)
        self.agent.wait_for(*(pod.container for pod in self.pods))

    def check_growth(self) -> None:
        """With the one pod that stays: each process has hardly more than when it was first seen with it alone."""
        for name, pid in (("daemon", self.daemon.pid), ("agent", self.agent_pid), ("plugin", self.plugin.pid)):
            wait_for(lambda name=name, pid=pid: self._small(name, pid), f"{name} {pid} to be small: {self.sizes}", 30)

    def _small(self, name: str, pid: int) -> bool:
        now = Size.of(pid)
        first, _ = self.sizes[name, pid] = (self.sizes.get((name, pid), (now, now))[0], now)
        more, mb = now.descriptors - first.descriptors, now.resident_mb - first.resident_mb
        return more <= MORE_DESCRIPTORS and mb <= MORE_MB

    def _seen(self) -> dict[int, tuple[str, int]]:
        return {task.pid: (task.labels.get("pod", ""), task.weight) for task in self.daemon.client.ps()}

    @property
    def agent_pid(self) -> int:
        assert self.agent.process is not None
        return self.agent.process.pid

    # -- restarts ---------------------------------------------------------------------------------------

    def start_daemon(self) -> None:
        self.daemons.close()
        self.daemon = self.daemons.enter_context(Daemon(self.commands))

    def kill_daemon(self) -> None:
        self.daemon.kill()
        self.start_daemon()

    def restart_agent(self) -> None:
        assert self.agent.stop() == 0
        self.agent.start()

    def kill_agent(self) -> None:
        assert self.agent.stop(signal.SIGKILL) == -signal.SIGKILL
        self.agent.start()

    def restart_kubelet(self) -> None:
        before = self.kubelet.registrations
        self.kubelet.restart()
        wait_for(lambda: self.kubelet.registrations > before, "the plugin to register again")

    def restart_runtime(self) -> None:
        self.runtime.stop()
        self.runtime.start()

    @property
    def restarts(self) -> list[Callable[[], None]]:
        return [
            self.kill_daemon, self.restart_kubelet, self.kill_agent, self.start_daemon, self.restart_kubelet,
            self.restart_agent,
        ]  # fmt: skip

    def close(self) -> None:
        for pod in list(self.pods):
            self.end_pod(pod)
        if self.agent.process is not None:
            self.agent.stop()
        self.plugin.terminate()
        self.daemons.close()
        for folder in (self.top, self.top.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()


@pytest.fixture
def node(commands: Commands, runtime: FakeRuntime, short_path: Path) -> Iterator[Node]:
    source, program = short_path / "tenant.c", short_path / "tenant"
    source.write_text(_TENANT)
    subprocess.run([*compiler.compiler(*compiler.C), "-O1", "-o", program, source, "-ldl"], check=True)
    with Kubelet(short_path) as kubelet:
        made = Node(commands, runtime, kubelet, program)
        try:
            yield made
        finally:
            made.close()


def test_no_task_is_lost_or_kept_and_nothing_grows(node: Node) -> None:
    node.run_pod()  # which stays to the end
    node.settle()
    (stays,) = node.pods
    socket_folder = set(os.listdir(node.commands.socket.parent))
    for number in range(ROUNDS):
        for _ in range(EACH // 2):
            node.run_pod()
        node.restarts[number % len(node.restarts)]()
        if number % 4 == 3:
            node.restart_runtime()
        for _ in range(EACH - EACH // 2):
            node.run_pod()
        node.settle()
        for pod in node.pods[1:]:
            node.end_pod(pod)
        node.settle()
        node.check_growth()
        assert node.pods == [stays]
        assert stays.process.poll() is None
    assert set(os.listdir(node.commands.socket.parent)) == socket_folder
    assert next(node.numbers) == 1 + ROUNDS * EACH
    longest = {name: node.sizes[name, pid] for name, pid in node.sizes}
    print(
        f"{ROUNDS * EACH} pods, {ROUNDS} restarts; of each process, the last of its kind: first and last size", longest
    )
