"""The agent: looks at the containers when something happened, and keeps the drop-ins what they should be.

What is in force stays until a runtime that answers says that its container is gone: a runtime that is away, slow or
restarted takes nothing from anybody, nor does an agent that ends.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from runlist.errors import RunlistError
from runlist.integrations.node import answers
from runlist.integrations.node.api import Api, Notice, configured, node_name
from runlist.integrations.node.cgroups import PodsWatch
from runlist.integrations.node.dialects import PRIORITY_CLASSES, Asked, names_no_containers
from runlist.integrations.node.drop_ins import DropIns, file_name, is_id, rule_text
from runlist.integrations.node.gpu_memory import GpuMemory
from runlist.integrations.node.orders import Orders
from runlist.integrations.node.pod_resources import PodResources
from runlist.integrations.node.pods import Container, Pod
from runlist.integrations.node.runtime import Runtime, RuntimeGone
from runlist.integrations.node.said import Said
from runlist.integrations.node.wanted import Wanted, wanted
from runlist.text import printable

LOOK_EVERY_S = 10.0
"""Without a sign that something changed."""

POLL_EVERY_S = 0.5
POLL_REST = 110
"""Where there are no signs, because cgroups cannot be watched: so often, or after so many times as long as a look and
the wait before it took of a core, so that the agent takes less than a hundredth.
"""

GATHER_S = 0.03
REST_S = 0.1
"""After a sign others often follow; after a look there is a pause."""

ABSENT_S = 1.5
"""A container that a runtime no longer names is gone after so long: one that has just started may not know them all."""

RETRY_S = (0.1, 1.0)
"""The first pause after a runtime that cannot be asked, and the longest."""

ANSWERS_AFTER_S, ANSWERS_EVERY_S = 1.5, 10.0

_LONGEST_SHOWN = 400

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Result:
    """What a container gets: its pod, its settings with where they come from, and the drop-in that says so."""

    container: str
    name: str
    pod: Pod
    wanted: Wanted
    labels: Mapping[str, str]
    text: str

    @classmethod
    def of(cls, container: Container, pod: Pod, found: Wanted) -> Result:
        """With who the container's processes are."""
        labels = {"pod": pod.name, "namespace": pod.namespace, "container": container.name}
        return cls(container.id, container.name, pod, found, labels, rule_text(container.id, labels, found.settings))

    def subject(self, about: str) -> str:
        """What a line of the log is about: something of this container."""
        return f"{_shown(str(self.pod))}, container {_shown(self.name)}, {about} ({self.container[:12]})"


class Agent:
    """One agent. `look` is one pass, `run` goes on until `stop`."""

    def __init__(
        self,
        runtime: Runtime,
        drop_ins: DropIns,
        gpu_memory: GpuMemory,
        *,
        device: str | None = None,
        priority_classes: Mapping[str, str] | None = None,
        kubelet: PodResources | None = None,
        now_and_then: Callable[[], None] = lambda: None,
    ) -> None:
        self._runtime, self._drop_ins, self._gpu_memory = runtime, drop_ins, gpu_memory
        self._device = device
        self._classes = {**PRIORITY_CLASSES, **(priority_classes or {})}
        self._kubelet = kubelet or PodResources()
        self._now_and_then = now_and_then
        self._said = Said()
        self._wake = threading.Event()
        self._stopped = False
        self._failed: Exception | None = None
        self._api: Api | None = None
        self._absent: dict[str, float] = {}
        self._orders = Orders()
        self._known: dict[str, tuple[object, Result]] = {}
        self._told: dict[str, Pod] = {}  # by the API server, of each container's pod
        self._answered: dict[str, tuple[str, ...]] = {}
        self._ask_daemon_at = time.monotonic() + ANSWERS_AFTER_S

    # -- one look ------------------------------------------------------------------------------------

    @property
    def unsettled(self) -> bool:
        """Whether a container is missing that may have gone."""
        return bool(self._absent)

    def look(self) -> list[Result]:
        """Ask the runtime, and bring the files up to date. Raises RunlistError or OSError; then another look is due."""
        self._drop_ins.take_up()
        containers = self._runtime.containers()
        self._said.say("the container runtime", "")
        usable = [one for one in containers if self._usable(one)]
        pods = self._runtime.pods(usable)
        self._orders.learn(usable)
        results = [
            self._result(one, pods[one.sandbox], self._orders.of(one.sandbox)) for one in usable if one.sandbox in pods
        ]
        if results and self._api is not None:
            self._api.say_whether_known()
        alive = {one.id for one in usable}
        for gone in self._known.keys() - alive:
            self._forget(gone)
        self._remove_gone(alive)  # first, since a disk may be full
        failed: OSError | None = None
        for result in results:
            if self._was_told_more(result.container):
                continue
            try:
                written = self._drop_ins.put(result.container, result.text)
            except OSError as error:  # others may have less to say
                failed = error
                continue
            if written:
                self._ask_daemon_at = min(self._ask_daemon_at, time.monotonic() + ANSWERS_AFTER_S)
        if failed is not None:
            raise failed
        self._said.say("the drop-ins", "")
        return results

    def _usable(self, container: Container) -> bool:
        if is_id(container.id):
            return True
        self._said.say("the container runtime's ids", "some are not 64 hexadecimal digits: these are left out")
        return False

    def _result(self, container: Container, pod: Pod, names: tuple[str, ...]) -> Result:
        """What a container gets; worked out anew when something that it depends on changed."""
        if self._api is not None and (newer := self._api.pod(pod)) is not None:
            self._told[container.id] = newer
        told = self._told.get(container.id)  # also of a pod that was deleted, while it runs
        newest = told or self._with_order(pod, names)
        depends = (newest, names, container.annotations, self._gpu_memory() if _is_part(newest) else None)
        before = self._known.get(container.id)
        if before is not None and before[0] == depends:
            return before[1]
        try:
            found = wanted(Asked(newest, container.name, names, self._gpu_memory, self._classes, container.annotations))
        except Exception as error:  # whatever one pod says, the others get theirs
            found = Wanted({}, notes=(printable(f"the annotations cannot be read: {error!r}")[:200],))
        result = Result.of(container, newest, found)
        self._known[container.id] = (depends, result)
        self._note(result, "annotations", "RunlistAnnotation", "; ".join(found.notes))
        return result

    def _was_told_more(self, container: str) -> bool:
        """Whether a former agent wrote what this one cannot know: the API server, which told it, says nothing of the
        pod now.
        """
        return self._api is not None and container not in self._told and self._drop_ins.has_left(container)

    def _with_order(self, pod: Pod, names: tuple[str, ...]) -> Pod:
        """A pod with the order of its containers, where that decides who gets what, and the kubelet tells."""
        if not names_no_containers(pod):
            return pod
        order = self._kubelet.names(pod.namespace, pod.name, names)
        self._said.say("the kubelet's pod-resources", self._kubelet.trouble)
        return replace(pod, order=order)

    def _note(self, result: Result, about: str, reason: str, text: str) -> None:
        """Say what is wrong with a container's settings: in the log, and as an event on its pod."""
        if self._said.say(result.subject(about), text) and text and self._api is not None:
            self._api.tell(Notice(result.pod, reason, f"container {_shown(result.name)}: {text}"))

    def _forget(self, container: str) -> None:
        _, result = self._known.pop(container)
        self._answered.pop(container, None)
        self._told.pop(container, None)
        self._said.forget([result.subject(about) for about in ("annotations", "the daemon")])

    def _remove_gone(self, alive: set[str]) -> None:
        now = time.monotonic()
        gone = self._drop_ins.there - alive
        self._absent = {one: self._absent.get(one, now) for one in gone}
        for container, since in list(self._absent.items()):
            if container in self._runtime.ended or now - since >= ABSENT_S:
                self._drop_ins.remove(container)
                del self._absent[container]

    # -- the daemon's answer ---------------------------------------------------------------------------

    def _hear_daemon(self) -> None:
        """What the daemon refused or lowered becomes a line and an event, once."""
        self._ask_daemon_at = time.monotonic() + ANSWERS_EVERY_S
        try:
            found = answers.by_container(self._device)
        except RunlistError as error:
            self._said.say("the daemon", f"{error}; the drop-ins wait for it")
            return
        self._said.say("the daemon", "")
        for container in found.keys() | self._answered.keys():
            lines = found.get(container, ())
            if container in self._known and lines != self._answered.get(container, ()):
                self._note(self._known[container][1], "the daemon", "RunlistLowered", "; ".join(lines))
        self._answered = {one: lines for one, lines in found.items() if one in self._known}

    # -- going on --------------------------------------------------------------------------------------

    def run(self) -> None:
        """Look whenever something happens, until `stop`. Raises RunlistError where the folder is somebody else's."""
        self._drop_ins.take_up()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        signal.signal(signal.SIGHUP, lambda *_: self._wake.set())
        looking = threading.Thread(target=self._look_until_stopped, name="looking", daemon=True)
        looking.start()  # here we wait for signals alone, which a runtime that hangs does not keep us from
        while looking.is_alive() and not self._stopped:
            looking.join(0.2)
        looking.join(0.5)
        self._runtime.close()  # and what waits for its answer goes on
        looking.join(1.0)
        if self._failed is not None:
            raise RunlistError(f"the agent failed: {self._failed!r}; the drop-ins stay")
        _log.info("ended; the drop-ins stay, and the next agent takes them up")

    def stop(self) -> None:
        """End `run` soon."""
        self._stopped = True
        self._wake.set()

    def _look_until_stopped(self) -> None:
        try:
            self._follow_api()
            watch = PodsWatch(self._wake.set)
            try:
                self._go_on(watch)
            finally:
                watch.close()
                self._drop_ins.close()
        except Exception as error:
            self._failed = None if self._stopped else error

    def _go_on(self, watch: PodsWatch) -> None:
        pause, ready, spent = RETRY_S[0], False, time.process_time()
        while not self._stopped:
            self._wake.clear()
            self._now_and_then()
            try:
                found = self.look()
            except RuntimeGone as error:
                self._said.say("the container runtime", f"{error}; what is in force stays")
                self._sleep(pause)
                pause = min(2 * pause, RETRY_S[1])
                continue
            except (RunlistError, OSError) as error:
                self._said.say("the drop-ins", f"they cannot be written, and what they said before stays: {error}")
                self._sleep(RETRY_S[1])
                continue
            pause = RETRY_S[0]
            if not ready:
                ready = True
                _log.info("ready", runtime=self._runtime.name, containers=len(found), folder=str(self._drop_ins.path))
            if time.monotonic() >= self._ask_daemon_at:
                self._hear_daemon()
            blind = not watch.sees([one.container for one in found])
            self._said.say("cgroups", "no pods are seen there: the runtime is polled" if blind and found else "")
            self._sleep(REST_S)
            took, spent = time.process_time() - spent, time.process_time()
            self._wait(max(POLL_EVERY_S, min(LOOK_EVERY_S, POLL_REST * took)) if blind else LOOK_EVERY_S)

    def _wait(self, until: float) -> None:
        """Until something happened, or a look is due, after so many seconds at the latest."""
        if self.unsettled:
            until = min(until, ABSENT_S)
        until = min(until, max(0.0, self._ask_daemon_at - time.monotonic()))
        if self._wake.wait(until) and not self._stopped:
            time.sleep(GATHER_S)

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._stopped and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, REST_S))

    def _follow_api(self) -> None:
        if not configured():
            _log.info("no API server to ask: annotations count as they were when a pod was made")
            return
        try:
            self._api = Api(node_name(), self._wake.set, self._said.say)
        except Exception as error:  # a file that is none, a library that is missing: the rest works
            self._said.say("the API server", printable(f"it cannot be asked: {error}")[:300])
            return
        self._api.complete.wait(2.0)  # so that what it knows is not first written without


def _shown(name: str) -> str:
    """A name as the log has it: a kubelet makes none that is longer, others may."""
    return printable(name[:_LONGEST_SHOWN])


def _is_part(pod: Pod) -> bool:
    """Whether a pod asks for a part of a GPU, for which its memory has to be known."""
    return any("gpu-fraction" in name or "gpu-memory" in name for name in pod.annotations) or bool(pod.limits)


def one_look(agent: Agent) -> list[Result]:
    """One look, and another one where a container may have gone."""
    results = agent.look()
    if agent.unsettled:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(ABSENT_S)
        results = agent.look()
    return results


def as_data(results: list[Result], folder: Path) -> list[dict[str, object]]:
    """Results as plain data, for people's tools."""
    return [
        {
            "file": str(folder / file_name(one.container)),
            "labels": dict(one.labels),
            "settings": one.wanted.settings,
            "sources": one.wanted.sources,
            "notes": list(one.wanted.notes),
        }
        for one in results
    ]
