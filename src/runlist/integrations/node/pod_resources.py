"""The kubelet's pod-resources: which containers a pod has, in the order of its specification, also those that have not
started. It is asked only where that decides something and no API server tells.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runlist.errors import RunlistError
from runlist.integrations.kubernetes.bounded import Bounded
from runlist.integrations.node.runtime import MAX_ANSWER, check_socket
from runlist.text import printable

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
PATIENCE_S = 1.0
"""All pods wait for an answer about one."""

AGAIN_S = (5.0, 60.0)
"""A pod that the kubelet does not tell of yet is asked for after the first pause, and up to the second one where the
kubelet does not answer.
"""

_Key = tuple[str, str]


class PodResources:
    """The kubelet at a socket. Whoever it does not tell of has no names; `trouble` says why it cannot be asked."""

    def __init__(self, socket: Path = SOCKET) -> None:
        self.trouble = ""
        self._socket = socket
        self._names: dict[_Key, tuple[str, ...]] = {}
        self._ask_at = float("-inf")
        self._pause = AGAIN_S[0]

    def names(self, namespace: str, pod: str, there: Sequence[str]) -> tuple[str, ...]:
        """The containers of a pod: its sidecars that run from the beginning, then the others. Those that are `there`,
        as they were started, are among them, but for those that came last, which are for debugging: of these the
        kubelet does not tell. Otherwise it speaks of an older pod of that name.
        """
        known = self._names.get((namespace, pod), ())
        if not set(there) <= set(known) and time.monotonic() >= self._ask_at:
            self._ask()
            if not self.trouble:
                self._pause = AGAIN_S[0]
            self._ask_at = time.monotonic() + self._pause
            if self.trouble:
                self._pause = min(2 * self._pause, AGAIN_S[1])
            known = self._names.get((namespace, pod), ())
        told = [one in known for one in there]
        return known if told == sorted(told, reverse=True) and any(told or [True]) else ()

    def _ask(self) -> None:
        import grpc

        from runlist.integrations.kubernetes import podresources_autogen as api

        try:
            check_socket(self._socket, "the kubelet")
        except RunlistError as error:
            self.trouble = str(error)
            return
        options = [("grpc.max_receive_message_length", MAX_ANSWER), ("grpc.enable_http_proxy", 0)]
        with grpc.insecure_channel(f"unix:{self._socket.absolute()}", options=options) as channel:
            try:
                answer: Any = api.PodResourcesListerStub(Bounded(channel)).List(
                    api.ListPodResourcesRequest(), timeout=PATIENCE_S
                )
            except grpc.RpcError as error:
                self.trouble = printable(f"{error.code().name}: {error.details() or ''}")[:200]
                return
        self.trouble = ""
        self._names = {
            (one.namespace, one.name): tuple(container.name for container in one.containers)
            for one in answer.pod_resources
        }
