"""Pods and containers, as far as settings depend on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_NAMES = frozenset(
    {
        "gpu-fraction", "gpu-fraction.limit", "gpu-memory", "gpu-memory.limit", "gpu-fraction-container-name",
        "hami.io/vgpu-devices-allocated", "priorityClassName", "io.kubernetes.pod.name", "io.kubernetes.pod.namespace",
        "io.kubernetes.pod.uid",
    }
)  # fmt: skip
_PREFIXES = ("nvidia.com/container.", "runlist.dev/")
_OURS = ".runlist.dev/"
_MOST = 256
_LONGEST_NAME = 512
_LONGEST = (1 << 16) + 1


def of_use(texts: Mapping[str, str]) -> dict[str, str]:
    """The annotations or labels that anybody here reads, cut where they are longer than any reader takes: a pod may
    have a lot of others, and we keep them for as long as it lives.
    """
    found: dict[str, str] = {}
    for name, text in texts.items():
        ours = name in _NAMES or name.startswith(_PREFIXES) or _OURS in name[:_MOST]
        if ours and len(name) <= _LONGEST_NAME and len(found) < _MOST:
            found[name] = str(text)[:_LONGEST]
    return found


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. `order` has the names of its containers as its specification has them, those that run before the others
    first; empty where nobody told. `limits` are the resources of each container.
    """

    uid: str
    name: str
    namespace: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    limits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    priority_class: str = ""
    priority: int | None = None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Container:
    """A container that lives, by the id that its cgroup has. Its annotations are the kubelet's and the device plugin's
    own; those of a pod are its author's. `restarted` says whether its pod had one of this name before.
    """

    id: str
    name: str
    sandbox: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    restarted: bool = False
