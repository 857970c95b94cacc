"""The API server, where there is one that may be asked: annotations as they change, and events on pods.

The container runtime knows the annotations with which a pod was made. Who changes them afterwards tells the API server
alone. Without it all else works.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runlist.errors import MissingExtra
from runlist.integrations.node.pods import Pod, of_use
from runlist.text import printable

if TYPE_CHECKING:  # they are imported when there is a server to ask
    from lightkube import Client, KubeConfig
    from lightkube.resources.core_v1 import Event as EventResource

    from runlist.integrations.node.following import Following

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")

WATCH_S = 300
SILENT_S = WATCH_S + 30.0
"""After so long a server ends a watch, and another is begun. One that is silent for longer is not waited for: it, or
what is between us, may be gone without a word.
"""

RETRY_S = (0.5, 30.0)
"""The first pause after a failure, and the longest."""

EVENTS_OF_POD, EVENTS_EVERY_S = 10, 60.0
"""Of one pod so many events are written at once, and another after each pause: its author may change it for ever."""

_MOST_EVENTS = 256
_MAX_MESSAGE = 1000
_TOO_OLD = 410
"""What a server says that keeps no changes from so long ago as the last one of this node, on which little may happen:
then all is listed once more.
"""

_TOO_NEW = 504
"""What a server says that knows nothing so new: one that was set back, or that is slow to learn from the others."""
_ANY_TIME = "0"

_Say = Callable[[str, str], object]
_Key = tuple[str, str]
_MIRROR = "kubernetes.io/config.hash"


@dataclass(frozen=True, slots=True)
class Notice:
    """What is to be an event on a pod."""

    pod: Pod
    reason: str
    message: str


def configured() -> bool:
    """Whether there is an API server to ask: a service account, or a file that KUBECONFIG names."""
    return bool(os.environ.get("KUBECONFIG")) or ACCOUNT.exists()


def node_name() -> str:
    """This node's name: NODE_NAME, as the downward API gives it, or the machine's."""
    return os.environ.get("NODE_NAME") or socket.gethostname().lower()


class Allowance:
    """How many events each pod may still have. Each moves the pod's time on by the pause between two; it lags behind
    ours by the events left to it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[str, float] = {}

    def take(self, uid: str) -> bool:
        """Whether the pod of a uid may have one now."""
        now = self._clock()  # of a machine that has just begun, less than the events of a pod take
        then = max(self._times.pop(uid, -math.inf), now - EVENTS_OF_POD * EVENTS_EVERY_S)
        may = then + EVENTS_EVERY_S <= now
        self._times[uid] = then + EVENTS_EVERY_S if may else then
        if len(self._times) > _MOST_EVENTS:
            del self._times[next(iter(self._times))]
        return may


class Api:
    """Follows the pods of one node in a thread, and writes events in another. `changed` is called after each change of
    a pod, and `say` with a subject and what is to be said of it.
    """

    def __init__(self, node: str, changed: Callable[[], None], say: _Say) -> None:
        _client().close()  # or what keeps it from being made
        self._node, self._changed, self._say = node, changed, say
        self._pods: dict[_Key, _Told] = {}
        self._since = _ANY_TIME
        self._notices: queue.Queue[Notice] = queue.Queue(_MOST_EVENTS)
        self._allowance = Allowance()
        self.complete = threading.Event()
        self.knows_node = False
        """Whether it ever told of a pod of this node."""
        for work in (self._follow, self._write):
            threading.Thread(target=work, name=f"api{work.__name__}", daemon=True).start()

    def pod(self, pod: Pod) -> Pod | None:
        """A pod as the API server last told it."""
        told = self._pods.get(_key(pod))
        return replace(told.pod, uid=pod.uid) if told is not None and pod.uid in told.uids else None

    def say_whether_known(self) -> None:
        """Say it where pods run here of which the server has none: it then knows this node by another name."""
        stranger = self.complete.is_set() and not self.knows_node
        wrong = f"the API server has no pod of a node {self._node}: set NODE_NAME to this node's name"
        self._say("the node's name", wrong if stranger else "")

    def tell(self, notice: Notice) -> None:
        """Make an event of it, soon; dropped where too many wait, or too many were of this pod: the log has all."""
        if self._allowance.take(notice.pod.uid):
            with contextlib.suppress(queue.Full):
                self._notices.put_nowait(notice)

    def _follow(self) -> None:
        from runlist.integrations.node.following import Following

        pause = RETRY_S[0]
        while True:
            began = time.monotonic()
            try:
                # A new one, since it keeps the connection of a watch that is refused.
                with contextlib.closing(Following(_config(), self._node, SILENT_S)) as server:
                    self._watch(server)
            except Exception as error:  # whatever its libraries raise: we go on without, and try again
                if _code(error) == _TOO_NEW:
                    self._since = ""
                if _code(error) != _TOO_OLD:
                    self._say("the API server", f"cannot be followed, what it said before stays: {_reason(error)}")
            pause = RETRY_S[0] if time.monotonic() - began > 2 * pause else min(2 * pause, RETRY_S[1])
            time.sleep(pause)

    def _watch(self, server: Following) -> None:
        self._since, listed = server.pods(self._since)
        pods = {_key(told.pod): told for told in map(self._told, listed) if told is not None}
        self.knows_node |= bool(pods)
        if pods != self._pods:
            self._pods = pods
            self._changed()
        self._say("the API server", "")
        self.complete.set()
        for kind, one in server.changes(self._since, WATCH_S):
            self._since = (one.metadata and one.metadata.resourceVersion) or self._since
            told = self._told(one)
            if told is None:
                continue
            if kind == "DELETED":
                self._pods.pop(_key(told.pod), None)
            elif self._pods.get(_key(told.pod)) != told:
                self.knows_node = True
                self._pods[_key(told.pod)] = told
                self._changed()

    def _told(self, pod: Mapping[str, Any]) -> _Told | None:
        try:
            return _told(pod)
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # the others are told all the same
            self._say("a pod of the API server", f"cannot be read, and is as it was before: {_reason(error)}")
            return None

    def _write(self) -> None:
        while True:
            notice = self._notices.get()
            try:
                with _client() as client:
                    client.create(_event(notice, self._node))
            except Exception as error:
                self._say("events", f"cannot be written, the log has them: {_reason(error)}")
            else:
                self._say("events", "")


def _config() -> KubeConfig:
    """How the API server is reached, with the token and the certificate that count now."""
    try:
        from lightkube import KubeConfig
    except ImportError:
        raise MissingExtra("talking to the API server", "lightkube", "node") from None
    named = os.environ.get("KUBECONFIG")
    return KubeConfig.from_file(named) if named else KubeConfig.from_service_account()


def _client() -> Client:
    """A client of the API server."""
    from lightkube import Client

    return Client(config=_config(), field_manager="runlist-node")


def _code(error: Exception) -> int | None:
    """What a server answered: in its word of the whole, or in one within a watch."""
    code = getattr(getattr(error, "status", None), "code", None)
    return code or getattr(getattr(error, "response", None), "status_code", None)


def _reason(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}")[:300]


def _key(pod: Pod) -> _Key:
    """What tells a pod from all others of its time."""
    return pod.namespace, pod.name


@dataclass(frozen=True, slots=True)
class _Told:
    """A pod, and the uids that its kubelet may call it by. That of a static one is an annotation, which others can
    write, too: it is one more, and for the pod of this name alone.
    """

    pod: Pod
    uids: frozenset[str]


def _told(pod: Mapping[str, Any]) -> _Told:
    """What we keep of a pod."""
    about, spec = pod["metadata"], pod.get("spec") or {}
    annotations = about.get("annotations") or {}
    uid = str(about["uid"])
    containers = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    limits = {one["name"]: (one.get("resources") or {}).get("limits") or {} for one in containers}
    priority = spec.get("priority")
    known = Pod(
        uid,
        str(about["name"]),
        str(about["namespace"]),
        of_use(annotations),
        of_use(about.get("labels") or {}),
        tuple(str(one["name"]) for one in containers),
        {name: some for name, all_ in limits.items() if (some := _ours(all_))},
        str(spec.get("priorityClassName") or ""),
        None if priority is None else int(priority),
    )
    return _Told(known, frozenset({uid, annotations.get(_MIRROR) or uid}))


def _ours(limits: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in limits.items() if key.startswith("nvidia.com/")}


def _event(notice: Notice, node: str) -> EventResource:
    from lightkube.models.core_v1 import EventSource, ObjectReference
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import Event

    now, pod = datetime.now(UTC), notice.pod
    return Event(
        metadata=ObjectMeta(generateName="runlist-", namespace=pod.namespace),
        involvedObject=ObjectReference(
            apiVersion="v1", kind="Pod", name=pod.name, namespace=pod.namespace, uid=pod.uid
        ),
        reason=notice.reason,
        message=notice.message[:_MAX_MESSAGE],
        type="Warning",
        count=1,
        firstTimestamp=now,
        lastTimestamp=now,
        reportingComponent="runlist-node",
        reportingInstance=node,
        source=EventSource(component="runlist-node", host=node),
    )
