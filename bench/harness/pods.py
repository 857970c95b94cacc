"""Pods without a cluster: a runtime that names them, cgroups as a kubelet makes them, and the node agent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.programs.cri_server import identifier
from runlist.protocol import environment_autogen as names


@contextlib.contextmanager
def runtime(socket: Path, pods: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A container runtime with so many pods, to be told of more."""
    words = [sys.executable, "-m", "bench.programs.cri_server", str(socket), str(pods)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        _answer(server)
        yield server
        server.terminate()


def tell(server: subprocess.Popen[str], name: str, *annotations: str) -> None:
    """There is one pod more, with annotations `KEY=VALUE`, or those that it takes by itself."""
    assert server.stdin is not None
    server.stdin.write(" ".join([name, *annotations]) + "\n")
    server.stdin.flush()
    _answer(server)


def _answer(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    if not server.stdout.readline():
        raise RuntimeError("the runtime of the benchmark ended")


@contextlib.contextmanager
def agent(folder: Path) -> Iterator[int]:
    """The agent of the daemon and of the runtime, `cri.sock`, in a folder; its pid."""
    environment = {**os.environ, names.SOCKET: str(folder / names.STREAM_SOCKET)}
    environment.pop("KUBECONFIG", None)
    words = [sys.executable, "-m", "runlist.cli", "node", "--cri", str(folder / "cri.sock")]
    with subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL) as agent:
        try:
            yield agent.pid
        finally:
            agent.send_signal(signal.SIGTERM)


@contextlib.contextmanager
def cgroups(top: Path) -> Iterator[None]:
    """The cgroup that pods are made in."""
    had = top.parent.exists()
    top.mkdir(parents=True)
    try:
        yield
    finally:
        for path, _, _ in os.walk(top if had else top.parent, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)


def make(top: Path, pod: str) -> None:
    """Cgroups as the kubelet and a runtime make them."""
    for container in ("main", "side"):
        (top / pod / identifier(f"{pod} {container}")).mkdir(parents=True)
