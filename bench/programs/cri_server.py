"""A container runtime that names many pods: CRI v1 on a socket. A line on standard input is one pod more: its name, and
annotations `KEY=VALUE` where it is to have others than all have.
"""

from __future__ import annotations

import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from runlist.integrations.kubernetes import cri_autogen as cri

FILLER = {f"example.com/note-{number}": "x" * 100 for number in range(15)}
"""What else pods usually carry."""


def identifier(word: str) -> str:
    """An id as runtimes make them."""
    return hashlib.sha256(word.encode()).hexdigest()


class Runtime:
    """Pods with two containers each."""

    def __init__(self) -> None:
        self.sandboxes: list[Any] = []
        self.containers: list[Any] = []

    def add(self, name: str, *words: str) -> None:
        """One pod more."""
        asks = dict(word.split("=", 1) for word in words) or {"runlist.dev/weight": "20", "gpu-fraction": "0.25"}
        annotations = {**FILLER, **asks}
        about = cri.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="bench")
        sandbox = cri.PodSandbox(id=identifier(f"{name} sandbox"), metadata=about, annotations=annotations)
        self.sandboxes.append(sandbox)
        for one in ("main", "side"):
            metadata = cri.ContainerMetadata(name=one)
            self.containers.append(
                cri.Container(
                    id=identifier(f"{name} {one}"),
                    pod_sandbox_id=sandbox.id,
                    metadata=metadata,
                    state=cri.CONTAINER_RUNNING,
                    created_at=len(self.containers),
                    labels={"io.kubernetes.pod.name": name, "io.kubernetes.container.name": one, **FILLER},
                )
            )

    def Version(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Who it is."""
        del request, context
        return cri.VersionResponse(runtime_name="bench", runtime_version="1", runtime_api_version="v1")

    def ListPodSandbox(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Its pods."""
        del context
        wanted = request.filter.id
        return cri.ListPodSandboxResponse(items=[one for one in self.sandboxes if not wanted or one.id == wanted])

    def ListContainers(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Its containers."""
        del request, context
        return cri.ListContainersResponse(containers=list(self.containers))


def main() -> None:
    """Serve until standard input ends."""
    runtime = Runtime()
    server = grpc.server(ThreadPoolExecutor(4))
    cri.add_RuntimeServiceServicer_to_server(runtime, server)
    server.add_insecure_port(f"unix:{sys.argv[1]}")
    for number in range(int(sys.argv[2])):
        runtime.add(f"pod-{number}")
    server.start()
    print("ready", flush=True)
    for line in sys.stdin:
        runtime.add(*line.split())
        print("added", flush=True)
    server.stop(0)


if __name__ == "__main__":
    main()
