"""Asking the container runtime: CRI v1 over its socket, with bounds on time and size.

`GetContainerEvents` is not asked: in containerd 1.7 and the CRI-O of its time all who listen take their events from one
queue, and so would we from the kubelet.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runlist import trusted
from runlist.errors import ExitCode, MissingExtra, RunlistError
from runlist.integrations.kubernetes.bounded import Bounded
from runlist.integrations.node.pods import Container, Pod, of_use
from runlist.text import printable

SOCKETS = (
    Path("/run/containerd/containerd.sock"),
    Path("/run/crio/crio.sock"),
    Path("/run/k3s/containerd/containerd.sock"),
    Path("/run/cri-dockerd.sock"),
)
"""Where runtimes listen, as the kubelet looks for them; the first one that is there is asked."""

PATIENCE_S = 10.0
MOST_PATIENCE_S = 60.0
"""How long an answer may take; after each that was late the next may take twice as long, up to the most."""

MAX_ANSWER = 16 << 20
"""Bytes, as many as the kubelet takes."""

ASK_EACH = 8
"""Up to so many sandboxes are asked for one by one."""

_LABEL = "io.kubernetes."


class RuntimeGone(RunlistError):
    """No answer that is of use: try again. What was known stays."""

    exit_code = ExitCode.NO_TARGET


class NoCri(RuntimeGone):
    """It speaks something else."""


class Runtime:
    """One runtime, the one at `socket` or the first that is found. Methods raise RuntimeGone."""

    def __init__(self, socket: Path | None = None) -> None:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what is to be said we say ourselves
        try:
            import grpc

            from runlist.integrations.kubernetes import cri_autogen
        except ImportError:
            raise MissingExtra("runlist node", "grpcio and protobuf", "node") from None
        self._grpc, self._cri = grpc, cri_autogen
        self._found = socket
        self._channel: Any = None
        self._stub: Any = None
        self._patience_s = PATIENCE_S
        self._pods: dict[str, Pod] = {}
        self._containers: dict[str, Container] = {}
        self.name = ""
        self.ended: frozenset[str] = frozenset()
        """The containers that the last answer says have ended."""

    def containers(self) -> list[Container]:
        """All containers that were made and have not ended, oldest first."""
        self._connect()
        answer = self._ask("ListContainers", self._cri.ListContainersRequest())
        alive = [one for one in answer.containers if one.state != self._cri.CONTAINER_EXITED]
        self.ended = frozenset(one.id for one in answer.containers if one.state == self._cri.CONTAINER_EXITED)
        alive.sort(key=lambda one: one.created_at)
        before = self._containers
        self._containers = {one.id: before.get(one.id) or _container(one) for one in alive}  # what it says of one stays
        return list(self._containers.values())

    def pods(self, containers: Iterable[Container]) -> dict[str, Pod]:
        """The pods of containers, by their sandbox. A runtime never changes what it says of a sandbox: each is asked
        for once.
        """
        wanted = {one.sandbox: one for one in containers}
        for gone in self._pods.keys() - wanted.keys():
            del self._pods[gone]
        new = wanted.keys() - self._pods.keys()
        if len(new) > ASK_EACH:
            with contextlib.suppress(TooLarge):  # the annotations of one pod are no reason not to know the others
                self._take(self._ask("ListPodSandbox", self._cri.ListPodSandboxRequest()))
            new = wanted.keys() - self._pods.keys()
        for sandbox in new:
            only = self._cri.PodSandboxFilter(id=sandbox)
            try:
                self._take(self._ask("ListPodSandbox", self._cri.ListPodSandboxRequest(filter=only)))
            except TooLarge:
                self._pods[sandbox] = _from_labels(wanted[sandbox])
        return {sandbox: self._pods[sandbox] for sandbox in wanted if sandbox in self._pods}

    def close(self) -> None:
        """Hang up."""
        if self._channel is not None:
            self._channel.close()
            self._channel = self._stub = None

    def _take(self, answer: Any) -> None:
        for one in answer.items:
            if one.id not in self._pods:
                about = one.metadata
                self._pods[one.id] = Pod(
                    about.uid or one.id, about.name, about.namespace, of_use(one.annotations), of_use(one.labels)
                )

    def _connect(self) -> None:
        """Find the runtime: of several the one that has pods. That is the node's from then on: another one knows other
        containers, and those of this one would count as gone while it is away.
        """
        sockets = [self._found] if self._found is not None else [*filter(_is_socket, SOCKETS)]
        if not sockets:
            raise RuntimeGone(f"no container runtime here: none of {', '.join(map(str, SOCKETS))}; name it by --cri")
        idle: Path | None = None
        away: RuntimeGone | None = None
        fault: NoCri | None = None
        for socket in sockets:
            if len(sockets) > 1:
                self.close()
            try:
                self._open(socket)
                is_the_nodes = self._found is not None or self._has_pods()
            except NoCri as error:  # such as the containerd of a Docker
                fault = fault or error
            except RuntimeGone as error:  # it may have left its socket for good
                away = away or error
            else:
                if is_the_nodes:
                    self._found = socket
                    return
                idle = idle or socket
        if away is not None:
            raise away
        if idle is None:
            assert fault is not None
            raise fault
        if len(sockets) > 1:
            self.close()
            self._open(idle)

    def _has_pods(self) -> bool:
        try:
            return bool(self._ask("ListPodSandbox", self._cri.ListPodSandboxRequest()).items)
        except TooLarge:
            return True

    def _open(self, socket: Path) -> None:
        try:
            check_socket(socket, "a container runtime")
        except RunlistError:
            self.close()
            raise
        if self._stub is not None:
            return
        options = [("grpc.max_receive_message_length", MAX_ANSWER), ("grpc.enable_http_proxy", 0)]
        self._channel = self._grpc.insecure_channel(f"unix:{socket.absolute()}", options=options)
        self._stub = self._cri.RuntimeServiceStub(Bounded(self._channel))
        told = self._ask("Version", self._cri.VersionRequest())
        self.name = printable(f"{told.runtime_name} {told.runtime_version}")[:100]

    def _ask(self, method: str, request: Any) -> Any:
        codes = self._grpc.StatusCode
        try:
            answer = getattr(self._stub, method)(request, timeout=self._patience_s)
        except self._grpc.RpcError as error:
            code, said = error.code(), printable(error.details() or "")[:200]
            if code is codes.RESOURCE_EXHAUSTED:
                raise TooLarge(f"{method}: more than {MAX_ANSWER >> 20} MiB: {said}") from None
            self.close()
            if code is codes.DEADLINE_EXCEEDED:
                waited, self._patience_s = self._patience_s, min(2 * self._patience_s, MOST_PATIENCE_S)
                raise RuntimeGone(f"the container runtime does not answer within {waited:g} s ({method})") from None
            if code is codes.UNIMPLEMENTED:
                advice = "take containerd 1.6, CRI-O 1.20 or later, with no cri in containerd's disabled_plugins"
                raise NoCri(f"it speaks no CRI v1 ({method}): {advice}") from None
            raise RuntimeGone(f"the container runtime cannot be asked ({method}): {code.name}: {said}") from None
        self._patience_s = PATIENCE_S
        return answer


class NotBelieved(RuntimeGone):
    """It could be anybody's word."""

    exit_code = ExitCode.NO_PERMISSION


class TooLarge(RuntimeGone):
    """More than we take."""


def check_socket(path: Path, whose: str) -> None:
    """Raise RuntimeGone for what is no socket, and NotBelieved for one of another user, or in whose place others could
    put one.
    """
    if not _is_socket(path):
        raise RuntimeGone(f"{path}: no socket of {whose}")
    try:
        trusted.check(path.parent)
    except (trusted.Untrusted, OSError) as error:
        raise NotBelieved(f"{path} is not asked: {error}") from None
    if (owner := os.stat(path).st_uid) not in (0, os.geteuid()):
        raise NotBelieved(f"{path} belongs to user {owner}, not to root: its word is not taken")


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _container(one: Any) -> Container:
    about = one.metadata
    return Container(
        one.id, about.name, one.pod_sandbox_id, of_use(one.labels), of_use(one.annotations), about.attempt > 0
    )


def _from_labels(container: Container) -> Pod:
    """What the kubelet writes on each container: who it is, and no annotations."""
    uid, name, namespace = (
        container.labels.get(f"{_LABEL}{key}", "") for key in ("pod.uid", "pod.name", "pod.namespace")
    )
    return Pod(uid or container.sandbox, name, namespace)
