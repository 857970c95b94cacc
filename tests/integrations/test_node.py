"""`runlist node` beside a runtime that speaks CRI: what it writes and when."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from runlist.integrations.kubernetes import cri_autogen as cri
from tests.fixtures.cri import FakeRuntime
from tests.fixtures.daemon import wait_for
from tests.fixtures.kubelet import Container, Kubelet
from tests.fixtures.node_agent import NodeAgent


def test_containers_come_and_go(runtime: FakeRuntime, agent: NodeAgent) -> None:
    before = runtime.run("web-0", {"runlist.dev/weight": "20"})
    agent.start()
    agent.wait_for(before)
    assert agent.rules[before]["labels"] == {"pod": "web-0", "namespace": "shop", "container": "main"}
    assert agent.rules[before]["set"] == {"weight": "20", "group": "pod:shop/web-0/uid-1"}
    later = runtime.run("web-1")
    agent.wait_for(before, later)
    runtime.exit(before)
    agent.wait_for(later)
    runtime.remove(later)
    agent.wait_for()
    assert agent.stop() == 0
    assert "Traceback" not in agent.said


def test_a_new_container_has_its_file_within_a_second(runtime: FakeRuntime, agent: NodeAgent) -> None:
    agent.start()
    agent.wait_for()
    wait_for(lambda: "ready" in agent.said)
    took = []
    for number in range(10):
        began = time.monotonic()
        one = runtime.run(f"quick-{number}")
        wait_for(partial(agent.has, one))
        took.append(time.monotonic() - began)
        if min(took) < 1.5:  # on a busy machine not each time
            break
    assert min(took) < 1.5, "polling, where there are no cgroups to watch, is every half second"


def test_what_is_written_is_for_nobody_else(runtime: FakeRuntime, agent: NodeAgent) -> None:
    one = runtime.run("web-0")
    assert agent.once("--once").returncode == 0
    assert agent.folder.stat().st_mode & 0o777 == 0o700
    assert (agent.folder / f"kubernetes-{one}.toml").stat().st_mode & 0o777 == 0o600


def test_nothing_is_rewritten_that_did_not_change(runtime: FakeRuntime, agent: NodeAgent) -> None:
    one = runtime.run("web-0", {"runlist.dev/weight": "20"})
    agent.once("--once")
    path = agent.folder / f"kubernetes-{one}.toml"
    first = path.stat()
    agent.once("--once")
    agent.start()
    other = runtime.run("web-1")
    agent.wait_for(one, other)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)


def test_what_a_former_agent_left_is_taken_up(runtime: FakeRuntime, agent: NodeAgent) -> None:
    kept, gone = runtime.run("web-0"), runtime.run("web-1")
    agent.start()
    agent.wait_for(kept, gone)
    agent.process.kill()  # type: ignore[union-attr]
    agent.process.wait()  # type: ignore[union-attr]
    runtime.remove(gone)
    (agent.folder / f"kubernetes-{kept}.toml").write_text("something else\x00")
    (agent.folder / f".kubernetes-{kept}.toml.4711").write_text("half")
    (agent.folder / "mine.toml").write_text("# an administrator's")
    (agent.folder / "slurm-4711.toml").write_text("# another program's")
    agent.start()
    wait_for(lambda: not (agent.folder / f"kubernetes-{gone}.toml").exists())
    agent.wait_for(kept)
    assert (agent.folder / "mine.toml").exists()
    assert (agent.folder / "slurm-4711.toml").exists()
    assert not (agent.folder / f".kubernetes-{kept}.toml.4711").exists()


def test_an_agent_that_ends_leaves_everything_in_force(runtime: FakeRuntime, agent: NodeAgent) -> None:
    one = runtime.run("web-0")
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)):
        agent.log.unlink(missing_ok=True)
        agent.start()
        wait_for(lambda: "ready" in agent.said)
        assert agent.stop(number) == code
        assert one in agent.rules


def test_two_agents_do_not_write_to_one_folder(runtime: FakeRuntime, agent: NodeAgent) -> None:
    one = runtime.run("web-0")
    agent.start()
    agent.wait_for(one)
    refused = agent.once("--once")
    assert refused.returncode == 1
    assert "another `runlist node` writes" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_pods_of_one_name_are_kept_apart(runtime: FakeRuntime, agent: NodeAgent) -> None:
    here = runtime.run("web-0", {"runlist.dev/weight": "10"})
    there = runtime.run("web-0", {"runlist.dev/weight": "20"}, namespace="other")
    again = runtime.run("web-0", {"runlist.dev/weight": "30"})
    found = {one["file"][-69:-5]: one for one in agent.once_json("--once")}
    assert {one: found[one]["settings"]["weight"] for one in (here, there, again)} == {
        here: "10", there: "20", again: "30",
    }  # fmt: skip
    assert len({one["settings"]["group"] for one in found.values()}) == 3


def test_what_a_device_plugin_granted_is_on_the_container(runtime: FakeRuntime, agent: NodeAgent) -> None:
    one = runtime.container(runtime.pod("web-0"), annotations={"runlist.dev/granted-share": "25"})
    agent.once("--once")
    assert agent.rules[one]["set"] == {"weight": "25", "group": "container"}


def test_containers_that_have_not_started_or_ended(runtime: FakeRuntime, agent: NodeAgent) -> None:
    pod = runtime.pod("web-0")
    made = runtime.container(pod, "soon", cri.CONTAINER_CREATED)
    runtime.container(pod, "ended", cri.CONTAINER_EXITED)
    unknown = runtime.container(pod, "lost", cri.CONTAINER_UNKNOWN)
    agent.once("--once")
    assert set(agent.rules) == {made, unknown}


def test_a_container_whose_sandbox_is_gone_is_left_out(runtime: FakeRuntime, agent: NodeAgent) -> None:
    lost, there = runtime.run("web-0"), runtime.run("web-1")
    del runtime.sandboxes[runtime.containers[lost].pod_sandbox_id]
    agent.once("--once")
    assert set(agent.rules) == {there}


def test_dry_run_writes_nothing(runtime: FakeRuntime, agent: NodeAgent) -> None:
    one = runtime.run("web-0", {"runlist.dev/weight": "20", "runlist.dev/cap": "much"})
    done = agent.once("--dry-run")
    assert done.returncode == 0
    assert f'container = "{one}"' in done.stdout
    assert "runlist.dev/cap=much is not taken" in done.stderr
    assert not agent.folder.exists()
    (found,) = agent.once_json("--dry-run")
    assert found["settings"]["weight"] == "20"
    assert found["sources"] == {"weight": "runlist.dev/weight=20"}
    assert len(found["notes"]) == 1


def test_priority_classes_of_the_cluster(runtime: FakeRuntime, agent: NodeAgent) -> None:
    runtime.run("web-0", labels={"priorityClassName": "gold"})
    (found,) = agent.once_json("--dry-run", "--priority-class", "gold=latency")
    assert found["settings"]["class"] == "latency"
    assert agent.once("--dry-run", "--priority-class", "gold=deadline").returncode == 2


@pytest.mark.parametrize("options", [("--once", "--dry-run"), ("--json",), ("--priority-class", "x")])
def test_options_that_do_not_go_together(agent: NodeAgent, options: tuple[str, ...]) -> None:
    done = agent.once(*options)
    assert done.returncode == 2
    assert not agent.folder.exists()


HAMI = {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1000,10:;GPU-1,NVIDIA,30000,90:;"}


def weights(agent: NodeAgent) -> dict[str, str]:
    """By container."""
    return {rule["labels"]["container"]: rule["set"].get("weight", "") for rule in agent.rules.values()}


def test_containers_keep_their_places_whichever_starts_again(runtime: FakeRuntime, agent: NodeAgent) -> None:
    agent.start()
    pod = runtime.pod("web-0", HAMI)
    before = runtime.container(pod, "init")
    agent.wait_for(before)
    runtime.exit(before)
    agent.wait_for()
    small, big = runtime.container(pod, "small"), runtime.container(pod, "big")
    wait_for(lambda: weights(agent) == {"small": "10", "big": "90"})
    runtime.exit(small)
    runtime.remove(small)
    wait_for(lambda: weights(agent) == {"big": "90"})
    runtime.container(pod, "small")
    wait_for(lambda: weights(agent) == {"small": "10", "big": "90"})
    for one in list(agent.rules):
        runtime.exit(one)
    wait_for(lambda: weights(agent) == {})
    for name in ("big", "small"):
        runtime.container(pod, name)
    wait_for(lambda: weights(agent) == {"small": "10", "big": "90"})
    runtime.exit(big)


def test_an_agent_that_saw_no_first_start_cannot_tell_containers_apart(runtime: FakeRuntime, agent: NodeAgent) -> None:
    pod = runtime.pod("web-0", HAMI)
    runtime.exit(runtime.container(pod, "small"))
    runtime.container(pod, "big")
    runtime.container(pod, "small")
    agent.start()
    wait_for(lambda: weights(agent) == {"small": "", "big": ""})
    wait_for(lambda: "cannot be told without an API server" in agent.said)


@pytest.fixture
def kubelet(short_path: Path) -> Iterator[Kubelet]:
    one = Kubelet(short_path)
    one.start()
    yield one
    one.stop()


def test_the_kubelet_tells_which_containers_a_pod_has(runtime: FakeRuntime, agent: NodeAgent, kubelet: Kubelet) -> None:
    """A sidecar runs beside the first of them while the second waits for its image: there are as many as parts."""
    kubelet.containers = [Container("shop", "web-0", name) for name in ("mesh", "small", "big")]
    pod = runtime.pod("web-0", HAMI, namespace="shop")
    for name in ("mesh", "small"):
        runtime.container(pod, name)
    agent.start("--pod-resources", str(kubelet.pod_resources))
    wait_for(lambda: weights(agent) == {"mesh": "", "small": "10"})
    runtime.container(pod, "big")
    wait_for(lambda: weights(agent) == {"mesh": "", "small": "10", "big": "90"})
    runtime.container(runtime.pod("other-0", {"runlist.dev/weight": "3"}, namespace="shop"))
    wait_for(lambda: weights(agent).get("main") == "3")


def two_parts(runtime: FakeRuntime, agent: NodeAgent, kubelet: Kubelet, *told: str) -> str:
    """A pod of two containers with parts of HAMi's, seen by an agent beside a kubelet that tells of these; its id."""
    kubelet.containers = [Container("shop", "web-0", name) for name in told]
    pod = runtime.pod("web-0", HAMI, namespace="shop")
    for name in ("small", "big"):
        runtime.container(pod, name)
    agent.start("--pod-resources", str(kubelet.pod_resources))
    wait_for(lambda: weights(agent) == {"small": "10", "big": "90"})
    return pod


def test_a_kubelet_that_speaks_of_another_pod_is_not_heard(
    runtime: FakeRuntime, agent: NodeAgent, kubelet: Kubelet
) -> None:
    two_parts(runtime, agent, kubelet, "big", "old")


def test_a_container_for_debugging_takes_nothing_from_the_others(
    runtime: FakeRuntime, agent: NodeAgent, kubelet: Kubelet
) -> None:
    """`kubectl debug` adds one: the kubelet's pod-resources do not tell of it."""
    pod = two_parts(runtime, agent, kubelet, "small", "big")
    runtime.container(pod, "debugger-x7k2p")
    wait_for(lambda: "debugger-x7k2p" in weights(agent))
    assert weights(agent) == {"small": "10", "big": "90", "debugger-x7k2p": ""}


@pytest.mark.parametrize("there", ["nothing", "a file", "a kubelet that ended"])
def test_without_a_kubelet_it_goes_by_what_it_saw(
    runtime: FakeRuntime, agent: NodeAgent, short_path: Path, there: str
) -> None:
    path = short_path / "kubelet.sock"
    if there == "a file":
        path.touch()
    if there == "a kubelet that ended":
        with socket.socket(socket.AF_UNIX) as ended:
            ended.bind(str(path))
    agent.start("--pod-resources", str(path))
    pod = runtime.pod("web-0", HAMI)
    for name in ("small", "big"):
        runtime.container(pod, name)
    wait_for(lambda: weights(agent) == {"small": "10", "big": "90"})
    wait_for(lambda: "the kubelet's pod-resources: " in agent.said)


def test_a_kubelet_that_hangs_holds_no_other_pod_up_for_long(
    runtime: FakeRuntime, agent: NodeAgent, short_path: Path
) -> None:
    """One pod's annotations have it asked; all the others have their settings meanwhile."""
    path = short_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as hangs:
        hangs.bind(str(path))
        hangs.listen()
        pod = runtime.pod("web-0", HAMI)
        for name in ("small", "big"):
            runtime.container(pod, name)
        agent.start("--pod-resources", str(path))
        wait_for(lambda: weights(agent) == {"small": "10", "big": "90"})
        took = []
        for number in range(4):
            began = time.monotonic()
            one = runtime.run(f"other-{number}", {"runlist.dev/weight": "3"})
            wait_for(lambda one=one: agent.has(one), "a pod that has nothing to do with it")
            took.append(time.monotonic() - began)
        assert min(took) < 3.0, "each look waited for it"
    assert agent.said.count("the kubelet's pod-resources: ") == 1
