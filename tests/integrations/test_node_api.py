"""`runlist node` beside an API server: annotations as they change, and events on pods."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from runlist.integrations.node import api
from runlist.integrations.node.api import EVENTS_OF_POD
from runlist.integrations.node.pods import Pod
from tests.fixtures.api_server import ApiServer
from tests.fixtures.cri import FakeRuntime
from tests.fixtures.daemon import wait_for
from tests.fixtures.node_agent import NodeAgent


@pytest.fixture
def server(short_path: Path) -> Iterator[ApiServer]:
    one = ApiServer(short_path)
    yield one
    one.close()


@pytest.fixture
def asking(short_path: Path, runtime: FakeRuntime, server: ApiServer) -> Iterator[NodeAgent]:
    """An agent with the right to ask it."""
    one = NodeAgent(short_path, runtime.socket, {"KUBECONFIG": str(server.config), "NODE_NAME": "node-1"})
    yield one
    if one.process is not None:
        one.process.kill()
        one.process.wait()


def _has(agent: NodeAgent, container: str, key: str, value: str | None) -> bool:
    rule: dict[str, Any] = agent.rules.get(container, {"set": {}})
    return bool(rule["set"].get(key) == value)


def test_a_changed_annotation_is_written_at_once(runtime: FakeRuntime, server: ApiServer, asking: NodeAgent) -> None:
    one = runtime.run("web-0", {"runlist.dev/weight": "10"}, uid="u1")
    server.put("web-0", "u1", {"runlist.dev/weight": "20"})
    asking.start()
    wait_for(partial(_has, asking, one, "weight", "20"))
    assert "spec.nodeName%3Dnode-1" in server.asked[0]
    wait_for(lambda: any("watch" in path for path in server.asked))
    took = []
    for weight in map(str, range(30, 40)):
        began = time.monotonic()
        server.put("web-0", "u1", {"runlist.dev/weight": weight, "example.com/note": "x"})
        wait_for(partial(_has, asking, one, "weight", weight))
        took.append(time.monotonic() - began)
        if min(took) < 1.0:  # on a busy machine not each time
            break
    assert min(took) < 1.0
    server.put("web-0", "u1", {})
    wait_for(partial(_has, asking, one, "weight", None))


def test_what_only_the_specification_says(runtime: FakeRuntime, server: ApiServer, asking: NodeAgent) -> None:
    one = runtime.run("web-0", uid="u1")
    limits = {"nvidia.com/gpumem": "3000", "cpu": "1"}
    server.put(
        "web-0", "u1", {}, containers=[{"name": "main", "resources": {"limits": limits}}],
        priorityClassName="train", priority=50,
    )  # fmt: skip
    asking.start()
    wait_for(partial(_has, asking, one, "memory", str(3000 << 20)))
    assert _has(asking, one, "class", "batch")


def test_no_pod_hides_its_specification(runtime: FakeRuntime, server: ApiServer, asking: NodeAgent) -> None:
    """By the annotation in which the uid of a static pod is."""
    hidden = {"kubernetes.io/config.hash": "u2", "kubernetes.io/config.mirror": "u2"}
    one, static = runtime.run("web-0", hidden, uid="u1"), runtime.run("static-0", uid="hash")
    server.put("web-0", "u1", hidden, priority=-5)
    server.put("static-0", "u3", {"kubernetes.io/config.hash": "hash"}, priority=-5)
    asking.start()
    wait_for(partial(_has, asking, one, "class", "batch"))
    wait_for(partial(_has, asking, static, "class", "batch"))
    assert asking.rules[one]["set"]["group"] == "pod:shop/web-0/u1"


def test_a_pod_that_is_deleted_while_it_runs_keeps_what_it_had(
    runtime: FakeRuntime, server: ApiServer, asking: NodeAgent
) -> None:
    """By force: its containers may go on for its grace period, and another of its name may begin meanwhile."""
    one = runtime.run("web-0", {"runlist.dev/weight": "1"}, uid="u1")
    server.put("web-0", "u1", {"runlist.dev/weight": "20"}, priority=-5)
    asking.start()
    wait_for(partial(_has, asking, one, "weight", "20"))
    server.delete("u1")
    again = runtime.run("web-0", uid="u2")
    server.put("web-0", "u2", {"runlist.dev/weight": "30"})
    wait_for(partial(_has, asking, again, "weight", "30"))
    other = runtime.run("web-1")
    wait_for(partial(asking.has, other))
    assert _has(asking, one, "weight", "20")
    assert _has(asking, one, "class", "batch")


def test_nonsense_is_one_event_on_the_pod(runtime: FakeRuntime, server: ApiServer, asking: NodeAgent) -> None:
    one = runtime.run("web-0", {"runlist.dev/weight": "ten\x1b[2J"}, uid="u1")
    asking.start()
    wait_for(lambda: server.events)
    (event,) = server.events
    assert event["involvedObject"] | {"apiVersion": "v1"} == {
        "apiVersion": "v1", "kind": "Pod", "name": "web-0", "namespace": "shop", "uid": "u1",
    }  # fmt: skip
    assert (event["type"], event["reason"]) == ("Warning", "RunlistAnnotation")
    assert "runlist.dev/weight=ten?[2J is not taken" in event["message"]
    for number in range(3):
        other = runtime.run(f"web-{number + 1}")
        wait_for(partial(asking.has, other))
    assert len(server.events) == 1
    server.put("web-0", "u1", {"runlist.dev/weight": "7"})
    wait_for(partial(_has, asking, one, "weight", "7"))
    assert "in order again" in asking.said


def test_a_pod_that_changes_all_the_time_has_some_events(
    runtime: FakeRuntime, server: ApiServer, asking: NodeAgent
) -> None:
    one = runtime.run("web-0", uid="u1")
    asking.start()
    for number in range(EVENTS_OF_POD + 3):
        server.put("web-0", "u1", {"runlist.dev/weight": f"no{number}"})
        wait_for(lambda number=number: f"weight=no{number} is not taken" in asking.said)
    other = runtime.run("web-1", {"runlist.dev/weight": "none"}, uid="u2")
    wait_for(lambda: any(event["involvedObject"]["uid"] == "u2" for event in server.events))
    assert asking.has(one)
    assert asking.has(other)
    assert len([event for event in server.events if event["involvedObject"]["uid"] == "u1"]) == EVENTS_OF_POD


def test_a_pod_that_cannot_be_read_hides_no_others(runtime: FakeRuntime, server: ApiServer, asking: NodeAgent) -> None:
    odd, other = runtime.run("odd-0", {"runlist.dev/weight": "3"}, uid="u1"), runtime.run("web-0", uid="u2")
    server.put("odd-0", "u1", {"runlist.dev/weight": "4"}, containers=[{"resources": 7}], volumes="none")
    server.put(
        "web-0", "u2", {"runlist.dev/weight": "7"}, volumes="none", containers=[{"name": "main", "new": {"a": 1}}]
    )
    asking.start()
    wait_for(partial(_has, asking, other, "weight", "7"))
    assert _has(asking, odd, "weight", "3")
    assert "a pod of the API server: cannot be read" in asking.said
    server.put("web-0", "u2", {"runlist.dev/weight": "8"})
    wait_for(partial(_has, asking, other, "weight", "8"))
    server.put("odd-0", "u1", {"runlist.dev/weight": "5"})
    wait_for(partial(_has, asking, odd, "weight", "5"))


def test_a_pod_cannot_speak_for_another(runtime: FakeRuntime, server: ApiServer, asking: NodeAgent) -> None:
    """The uid that a static pod has is an annotation: whoever writes it so does not become that pod."""
    one = runtime.run("web-0", {"runlist.dev/weight": "10"}, uid="u1")
    server.put("web-0", "mirror", {"kubernetes.io/config.hash": "u1", "runlist.dev/weight": "20"})
    server.put("evil", "u2", {"kubernetes.io/config.hash": "u1", "runlist.dev/weight": "9999"}, namespace="other")
    server.put("web-0", "u3", {"kubernetes.io/config.hash": "u1", "runlist.dev/weight": "9999"}, namespace="other")
    asking.start()
    wait_for(partial(_has, asking, one, "weight", "20"))


def test_without_an_answer_the_runtime_has_said_enough(
    runtime: FakeRuntime, server: ApiServer, asking: NodeAgent
) -> None:
    server.refusal = 403
    one = runtime.run("web-0", {"runlist.dev/weight": "10", "runlist.dev/cap": "x"}, uid="u1")
    asking.start()
    wait_for(partial(_has, asking, one, "weight", "10"))
    wait_for(lambda: "the API server: cannot be followed" in asking.said and "events: cannot be written" in asking.said)
    wait_for(lambda: len(server.asked) >= 3)
    assert asking.said.count("the API server: cannot be followed") == 1
    server.refusal = 0
    server.put("web-0", "u1", {"runlist.dev/weight": "20"})
    wait_for(partial(_has, asking, one, "weight", "20"))
    assert asking.stop() == 0
    assert "Traceback" not in asking.said


def test_an_agent_that_begins_while_the_server_is_away_takes_nothing_back(
    runtime: FakeRuntime, server: ApiServer, asking: NodeAgent
) -> None:
    """What the one before it was told stays in force, until the server says something else: the runtime knows how a pod
    was made, and not what its administrator took away since.
    """
    one, deleted = (runtime.run(name, {"runlist.dev/class": "latency"}, uid=name) for name in ("web-0", "web-1"))
    for name in ("web-0", "web-1"):
        server.put(name, name, {"runlist.dev/class": "batch"})
    asking.start()
    for container in (one, deleted):
        wait_for(partial(_has, asking, container, "class", "batch"))
    assert asking.stop() == 0
    server.delete("web-1")
    server.refusal = 503
    asking.log.unlink()
    asking.start()
    new = runtime.run("web-2", {"runlist.dev/class": "latency"})
    wait_for(partial(_has, asking, new, "class", "latency"))
    assert _has(asking, one, "class", "batch")
    server.refusal = 0
    server.put("web-0", "web-0", {"runlist.dev/class": "normal"})
    wait_for(partial(_has, asking, one, "class", "normal"))
    assert _has(asking, deleted, "class", "batch")


def _follows_after(runtime: FakeRuntime, server: ApiServer, asking: NodeAgent, cut: Callable[[], None]) -> str:
    """A container whose pod's annotations are followed, also after each watch was cut off."""
    one = runtime.run("web-0", uid="u1")
    server.put("web-0", "u1", {"runlist.dev/weight": "10"})
    asking.start()
    wait_for(partial(_has, asking, one, "weight", "10"))
    for weight in ("20", "30"):
        wait_for(lambda: any("watch" in path for path in server.asked))
        server.asked.clear()
        cut()
        server.put("web-0", "u1", {"runlist.dev/weight": weight})
        wait_for(partial(_has, asking, one, "weight", weight))
    return one


def test_a_watch_that_ends_is_begun_again(runtime: FakeRuntime, server: ApiServer, asking: NodeAgent) -> None:
    _follows_after(runtime, server, asking, server.hang_up)


def test_a_server_that_vanished_is_not_waited_for(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing ends its connections, and what waits for it would do so for ever."""
    monkeypatch.setenv("KUBECONFIG", str(server.config))
    monkeypatch.setattr(api, "SILENT_S", 0.5)
    pod = Pod("u1", "web-0", "shop")
    server.put("web-0", "u1", {"runlist.dev/weight": "20"})
    follower = api.Api("node-1", lambda: None, lambda *_: None)

    def weight() -> str:
        told = follower.pod(pod)
        return "" if told is None else told.annotations.get("runlist.dev/weight", "")

    wait_for(lambda: weight() == "20")
    wait_for(lambda: any("watch" in path for path in server.asked))
    server.vanish()
    server.put("web-0", "u1", {"runlist.dev/weight": "30"})
    wait_for(lambda: weight() == "30")


def test_a_server_that_ends_each_watch_at_once_is_asked_again_after_a_pause(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server does that ends itself, or a proxy before it: a thousand watches a second would be no help to it."""
    monkeypatch.setenv("KUBECONFIG", str(server.config))
    monkeypatch.setattr(api, "RETRY_S", (600.0, 600.0))
    said: list[str] = []
    server.is_hasty = True
    api.Api("node-1", lambda: None, lambda _, text: said.append(text))
    wait_for(lambda: any("at once" in text for text in said))
    assert sum("watch" in path for path in server.asked) == 1


def test_watches_that_are_refused_keep_nothing(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right that is missing, or a server that is too busy, for as long as that takes."""
    monkeypatch.setenv("KUBECONFIG", str(server.config))
    monkeypatch.setattr(api, "RETRY_S", (0.0, 0.0))
    said: list[str] = []
    server.watch_refusal = 403
    server.put("web-0", "u1", {})
    before = len(os.listdir("/proc/self/fd"))
    follower = api.Api("node-1", lambda: None, lambda _, text: said.append(text))
    wait_for(lambda: len(server.asked) > 300, "more tries than there are connections", 60)
    assert len(os.listdir("/proc/self/fd")) < before + 50
    assert not any("PoolTimeout" in text for text in said)
    server.watch_refusal = 0
    server.put("web-0", "u1", {"runlist.dev/weight": "30"})
    wait_for(lambda: (told := follower.pod(Pod("u1", "web-0", "shop"))) is not None and bool(told.annotations))


def test_a_token_that_is_replaced(runtime: FakeRuntime, server: ApiServer, asking: NodeAgent) -> None:
    """As a kubelet does with a service account's: the one before is not taken any more."""
    one = runtime.run("web-0", uid="u1")
    server.put("web-0", "u1", {"runlist.dev/weight": "20"})
    asking.start()
    wait_for(partial(_has, asking, one, "weight", "20"))
    server.token.write_text("second")
    server.hang_up()
    server.put("web-0", "u1", {"runlist.dev/weight": "30"})
    wait_for(partial(_has, asking, one, "weight", "30"))


def test_a_server_that_keeps_no_older_changes_is_asked_for_all(
    runtime: FakeRuntime, server: ApiServer, asking: NodeAgent
) -> None:
    """On a node where little happens that is each time that a watch is begun again: it is no fault."""
    one = _follows_after(runtime, server, asking, server.expire)
    server.watch_refusal = 410
    server.expire()
    server.put("web-0", "u1", {"runlist.dev/weight": "40"})
    wait_for(partial(_has, asking, one, "weight", "40"))
    assert "cannot be followed" not in asking.said


def test_all_pods_are_asked_for_as_the_server_has_them_at_hand(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would read those of the whole cluster from its store otherwise, for each node. They are none older than what
    was told already, but of a server that knows nothing so new.
    """
    monkeypatch.setenv("KUBECONFIG", str(server.config))
    monkeypatch.setattr(api, "RETRY_S", (0.0, 0.0))

    def lists() -> list[str | None]:
        queries = [parse_qs(urlparse(path).query) for path in server.asked]
        return [query.get("resourceVersion", [None])[0] for query in queries if "watch" not in query]

    server.put("web-0", "u1", {})
    follower = api.Api("node-1", lambda: None, lambda *_: None)
    wait_for(lambda: any("watch" in path for path in server.asked))
    server.put("web-0", "u1", {"runlist.dev/weight": "30"})
    wait_for(lambda: (told := follower.pod(Pod("u1", "web-0", "shop"))) is not None and bool(told.annotations))
    server.expire()
    wait_for(lambda: len(lists()) == 2)
    assert lists() == ["0", server.pods["u1"]["metadata"]["resourceVersion"]]
    server.refusal = 504
    server.expire()
    wait_for(lambda: lists()[-1] is None)
    server.refusal = 0


def test_a_watch_that_is_refused_is_told_by_its_reason_and_begun_again(
    runtime: FakeRuntime, server: ApiServer, asking: NodeAgent
) -> None:
    server.watch_refusal = 403
    one = runtime.run("web-0", uid="u1")
    server.put("web-0", "u1", {"runlist.dev/weight": "10"})
    asking.start()
    wait_for(lambda: "the API server: cannot be followed" in asking.said)
    assert "403 Forbidden" in asking.said
    server.watch_refusal = 0
    server.put("web-0", "u1", {"runlist.dev/weight": "20"})
    wait_for(partial(_has, asking, one, "weight", "20"))


def test_a_file_of_configuration_that_is_none(short_path: Path, runtime: FakeRuntime) -> None:
    one = runtime.run("web-0")
    (short_path / "wrong").write_text("{")
    agent = NodeAgent(short_path, runtime.socket, {"KUBECONFIG": str(short_path / "wrong")}).start()
    agent.wait_for(one)
    assert "the API server: it cannot be asked" in agent.said
    assert agent.stop() == 0


def test_a_node_that_the_server_knows_by_another_name(
    runtime: FakeRuntime, server: ApiServer, asking: NodeAgent
) -> None:
    """An agent outside of a pod takes the machine's name, which need not be the node's: then it is told of no pod."""
    one = runtime.run("web-0", {"runlist.dev/weight": "10"}, uid="u1")
    asking.start()
    wait_for(lambda: "the API server has no pod of a node node-1: set NODE_NAME" in asking.said)
    later = runtime.run("web-1", uid="u2")
    asking.wait_for(one, later)
    assert asking.has_said("the API server has no pod", 1)
    server.put("web-1", "u2", {"runlist.dev/weight": "20"})
    wait_for(partial(_has, asking, later, "weight", "20"))
    wait_for(lambda: "the node's name: in order again" in asking.said)
