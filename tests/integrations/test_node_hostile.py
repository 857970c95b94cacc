"""`runlist node` and pods that mean harm, or are many."""

from __future__ import annotations

import os
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from runlist.daemon.placement.rules import Rules
from runlist.integrations.kubernetes import cri_autogen as cri
from tests.fixtures.cri import FakeRuntime
from tests.fixtures.daemon import wait_for
from tests.fixtures.effort import TIMES
from tests.fixtures.node_agent import NodeAgent


def test_ids_that_are_no_ids_name_no_files(runtime: FakeRuntime, agent: NodeAgent, short_path: Path) -> None:
    good = runtime.run("web-0")
    pod = runtime.pod("evil")
    for word in ("../../../etc/x", "*", "", "A" * 64, "a" * 63, f"{'a' * 64}\n"):
        runtime.container(pod, named=word or "empty")
    done = agent.once("--once")
    assert done.returncode == 0
    assert set(agent.rules) == {good}
    assert {path.name for path in agent.folder.iterdir()} == {f"kubernetes-{good}.toml", ".kubernetes.lock"}


def test_hostile_pods_write_no_rules_and_no_escapes(runtime: FakeRuntime, agent: NodeAgent) -> None:
    evil = runtime.run(
        'x"\n[[rule]]\nset.class = "latency"\n#',
        {
            "runlist.dev/weight": "\x1b[2J\x1b]0;owned\x07",
            "runlist.dev/cap": '50%"\n[[rule]]',
            "runlist.dev/class": "batch",
        },
        namespace="\x1b[31m",
    )
    good = runtime.run("web-0", {"runlist.dev/weight": "20"})
    done = agent.once("--once")
    assert done.returncode == 0
    assert "\x1b" not in done.stderr
    assert agent.rules[evil]["set"].keys() == {"class", "group"}
    assert agent.rules[good]["set"]["weight"] == "20"


def test_annotations_of_a_mebibyte_are_the_pods_own_trouble(runtime: FakeRuntime, agent: NodeAgent) -> None:
    """Together they are more than anybody takes at once."""
    large = [runtime.run(f"large-{n}", {"huge": "x" * (1 << 20), "runlist.dev/weight": "7"}) for n in range(20)]
    too_large = runtime.run("larger", {f"huge{n}": "x" * (1 << 20) for n in range(20)})
    good = runtime.run("web-0", {"runlist.dev/weight": "20"})
    done = agent.once("--once")
    assert done.returncode == 0, done.stderr
    assert agent.rules[good]["set"]["weight"] == "20"
    assert all(agent.rules[one]["set"]["weight"] == "7" for one in large)
    assert agent.rules[too_large]["labels"] == {"pod": "larger", "namespace": "shop", "container": "main"}


def test_ten_thousand_containers(runtime: FakeRuntime, agent: NodeAgent) -> None:
    pod = runtime.pod("many", {"runlist.dev/weight": "20"})
    for number in range(10_000):
        runtime.container(pod, f"c{number}")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert agent.once("--once").returncode == 0
    assert len(list(agent.folder.glob("kubernetes-*.toml"))) == 10_000
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    print("seconds", spent := after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert spent < 30  # of a processor


def test_the_daemon_reads_what_is_written(runtime: FakeRuntime, agent: NodeAgent) -> None:
    """Its reader of rules takes the file, but for labels where it has none."""
    one = runtime.run("web-0", {"runlist.dev/weight": "20", "runlist.dev/memory": "8Gi", "gpu-fraction": "0.5"})
    agent.once("--once")
    path = agent.folder / f"kubernetes-{one}.toml"
    plain = path.with_name("plain.toml")
    plain.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("labels")))
    assert Rules.load(plain)


def test_names_of_a_mebibyte_are_short_lines(runtime: FakeRuntime, agent: NodeAgent) -> None:
    """A kubelet makes none, but whoever else speaks to the runtime may."""
    named = runtime.container(
        runtime.pod("p" * (1 << 20), {"runlist.dev/weight": "none"}, namespace="n" * (1 << 20)), "c" * (1 << 20)
    )
    good = runtime.run("web-0", {"runlist.dev/weight": "20"})
    agent.start()
    agent.wait_for(named, good)
    wait_for(lambda: "runlist.dev/weight=none is not taken" in agent.said, "the wrong weight to be said")
    assert max(map(len, agent.said.splitlines())) < 2000
    assert max(path.stat().st_size for path in agent.folder.iterdir()) < 8192
    runtime.remove(named)
    agent.wait_for(good)


def test_an_answer_of_millions_of_nothings_is_not_read(short_path: Path) -> None:
    """16 MiB of messages of two bytes would be gibibytes in memory."""
    answers = {
        "Version": cri.VersionResponse(runtime_name="fake").SerializeToString(),
        "ListContainers": b"\x0a\x00" * ((16 << 20) // 2 - 1),
    }

    class Handler(grpc.GenericRpcHandler):
        def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(lambda *_: answers[call.method.rpartition("/")[2]])

    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((Handler(),))
    server.add_insecure_port(f"unix:{short_path}/cri.sock")
    server.start()
    agent = NodeAgent(short_path, short_path / "cri.sock").start()
    try:
        wait_for(lambda: "cannot be asked (ListContainers)" in agent.said, "it to be refused")
        assert agent.process is not None
        assert _kibibytes(agent.process.pid, "VmHWM") < 200 << 10
    finally:
        agent.stop(signal.SIGKILL)
        server.stop(0)


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _kibibytes(pid: int, what: str = "VmRSS") -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1])


EACH = min(200, 50 * TIMES)


def test_pods_that_come_and_go_leave_nothing(runtime: FakeRuntime, agent: NodeAgent) -> None:
    stays = runtime.run("stays")
    agent.start()
    agent.wait_for(stays)
    pid = agent.process.pid  # type: ignore[union-attr]
    figures: list[tuple[int, int]] = []

    def come_and_go(rounds: int) -> None:
        for number in range(rounds):
            some = [runtime.run(f"brief-{number}-{n}", {"runlist.dev/weight": "x"}) for n in range(EACH)]
            agent.wait_for(stays, *some)
            for one in some:
                runtime.exit(one)
            agent.wait_for(stays)
            for one in some:
                runtime.remove(one)
            figures.append((_descriptors(pid), _kibibytes(pid)))

    come_and_go(5)
    assert figures[-1][0] <= figures[1][0] + 2
    assert figures[-1][1] <= figures[1][1] + 8192
    assert figures[-1][1] < 80 << 10, "KiB in all"
    assert set(agent.rules) == {stays}
