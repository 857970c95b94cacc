"""The API server's list and watch of one node's pods. lightkube waits for what a watch says without end, and begins one
that ended at once again, as often as it can: here neither is so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from lightkube import KubeConfig
from lightkube.config.client_adapter import ConnectionParams
from lightkube.core.generic_client import GenericSyncClient
from lightkube.generic_resource import GenericNamespacedResource, create_api_info

LEAST_S = 1.0
"""A watch that ends sooner is not begun again by itself: a server that ends itself, or a proxy, would be asked without
end.
"""


class AnyPod(GenericNamespacedResource):
    """A pod as it came: others' new fields are none of our business."""

    _api_info = create_api_info("", "v1", "Pod", "pods")


class EndedAtOnce(Exception):
    """A server that keeps no watch."""


class Following(GenericSyncClient):
    """A client for the pods of a node. A watch that is silent for `silent_s` is given up. Its methods raise whatever
    its libraries do.
    """

    def __init__(self, config: KubeConfig, node: str, silent_s: float) -> None:
        super().__init__(ConnectionParams(), config)
        self._of_node = {"fieldSelector": f"spec.nodeName={node}"}
        self._silent_s = silent_s
        self._began = float("-inf")

    def pods(self, not_before: str) -> tuple[str, list[AnyPod]]:
        """All pods, as the server has them at hand but none older than that, and as of when that is. With no time it
        reads them from its store: those of the whole cluster.
        """
        params = {**self._of_node, "resourceVersion": not_before or None}
        asked = self.list(self.prepare_request("list", res=AnyPod, namespace="*", params=params))
        found = list(asked)
        return asked.resourceVersion, found

    def changes(self, since: str, seconds: int) -> Iterator[tuple[str, AnyPod]]:
        """What happens to pods since then, by watches of so many seconds each."""
        params = {**self._of_node, "timeoutSeconds": seconds, "resourceVersion": since}
        return iter(self.watch(self.prepare_request("list", res=AnyPod, namespace="*", watch=True, params=params)))

    def send(self, req: Any, stream: bool = False) -> Any:
        """Ask; what streams is a watch."""
        if stream:
            now = time.monotonic()
            if now - self._began < LEAST_S:
                raise EndedAtOnce("the server ends a watch at once that it has just begun")
            self._began = now
            req.extensions = {**req.extensions, "timeout": {**req.extensions["timeout"], "read": self._silent_s}}
        return super().send(req, stream)
