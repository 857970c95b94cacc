"""What the annotations of a pod ask for, in the words of each system that writes such: one table.

A dialect is a function that gives wishes for one container. A wish is a setting and its value as `runlist set` takes
it, or what is wrong with what was asked. `wanted.py` chooses among them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from runlist.integrations.kubernetes.names import DOMAIN, GRANTED_MEMORY, GRANTED_SHARE
from runlist.integrations.node import quantities
from runlist.integrations.node.pods import Pod
from runlist.integrations.parts import weight_of
from runlist.units import MAX_SIZE

OUR_KEYS = ("class", "weight", "cap", "memory", "p99", "group")
PRIORITY_CLASSES: Mapping[str, str] = {
    "train": "batch",
    "build": "normal",
    "build-preemptible": "normal",
    "inference": "latency",
}
"""The priority classes that KAI brings, by what it says they are for."""

_OUR_KEY = re.compile(rf"(?:([^/]+)\.)?{re.escape(DOMAIN)}/(.*)", re.DOTALL)
_NV_KEY = re.compile(r"nvidia\.com/container\.(.+)\.gpu-memory\.(?:limit|request)")
_NO_CONTAINER = "the pod has no such container"
_MAX_VALUE = 256
_UNLIMITED_CORES = 100


@dataclass(frozen=True, slots=True)
class Wish:
    """A setting, its value, and where that stands. `wrong` says why there is none. `own`: it is the container's, and
    not its whole pod's.
    """

    key: str
    value: str
    source: str
    wrong: str = ""
    own: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """Whose wishes are wanted: a container, of the `names` in its pod, in the order in which they were first started,
    as far as that is known. `gpu_memory` tells the bytes that each GPU of this node has, None where they differ or
    nobody knows.
    """

    pod: Pod
    container: str
    names: tuple[str, ...]
    gpu_memory: Callable[[], int | None]
    priority_classes: Mapping[str, str]
    granted: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the container itself, which only the kubelet writes."""

    def lacks(self, container: str) -> bool:
        """Whether the pod is known to have no container of this name."""
        return bool(self.pod.order) and container not in (*self.pod.order, *self.names)


Wishes = Iterator[Wish]


def _read(asked: Asked, annotation: str, key: str, read: Callable[[str], str], own: bool = False) -> Wishes:
    """The wish of one annotation, where the pod has it."""
    text = asked.pod.annotations.get(annotation)
    if text is not None:
        yield _wish(annotation, text, key, read, own)


def _wish(name: str, text: str, key: str, read: Callable[[str], str], own: bool = False) -> Wish:
    source = f"{name}={text[:_MAX_VALUE]}"
    if len(text) > _MAX_VALUE:
        return Wish(key, "", source, f"longer than {_MAX_VALUE} characters", own)
    try:
        return Wish(key, read(text.strip()), source, own=own)
    except ValueError as error:
        return Wish(key, "", source, str(error), own)


# -- the device plugin's -----------------------------------------------------------------------------


def granted(asked: Asked) -> Wishes:
    """The share and the memory that Kubernetes counted for a container: nobody has more by an annotation."""
    for name, key, read in (
        (GRANTED_SHARE, "weight", lambda text: str(_percentage(text))),
        (GRANTED_MEMORY, "memory", lambda text: str(quantities.quantity(text))),
    ):
        if (text := asked.granted.get(name)) is not None:
            yield _wish(name, text, key, read, own=True)


# -- ours --------------------------------------------------------------------------------------------


def ours(asked: Asked) -> Wishes:
    """`runlist.dev/weight` for the pod, `main.runlist.dev/weight` for its container `main`, which goes first."""
    found = [
        (match[1] or "", match[2], annotation)
        for annotation in asked.pod.annotations
        if len(annotation) <= 2 * _MAX_VALUE and (match := _OUR_KEY.fullmatch(annotation)) is not None
    ]
    for container, key, annotation in sorted(found, key=_the_containers_first):
        if container not in ("", asked.container):
            if asked.lacks(container):
                yield Wish(key, "", annotation, _NO_CONTAINER)
            continue
        if key not in OUR_KEYS:
            yield Wish(key, "", annotation, f"no such key: take {', '.join(OUR_KEYS)}")
        else:
            yield from _read(asked, annotation, key, _OUR_READERS.get(key, str), own=bool(container))


def _our_class(text: str) -> str:
    if text not in _CLASSES:
        raise ValueError(f"take {', '.join(_CLASSES)}")
    return text


_CLASSES = ("latency", "normal", "batch")
_OUR_READERS: Mapping[str, Callable[[str], str]] = {"class": _our_class}


def _the_containers_first(found: tuple[str, str, str]) -> tuple[bool, str]:
    container, key, _ = found
    return container == "", key


# -- KAI -----------------------------------------------------------------------------------------------


def nv_fractions(asked: Asked) -> Wishes:
    """`nvidia.com/container.NAME.gpu-memory.limit` and `.request`: the limit, and what its scheduler counts."""
    prefix = f"nvidia.com/container.{asked.container}.gpu-memory."
    request, limit = prefix + "request", prefix + "limit"
    given = [name for name in (limit, request) if name in asked.pod.annotations]
    for name in given:  # where only one is set the other is the same
        yield from _read(asked, name, "memory", lambda text: str(quantities.quantity(text)), own=True)
    for name in reversed(given):
        yield from _weight(asked, name, quantities.quantity, own=True)
    for name in asked.pod.annotations:
        if (match := _NV_KEY.fullmatch(name)) is not None and asked.lacks(match[1]):
            yield Wish("memory", "", name, _NO_CONTAINER)


def kai(asked: Asked) -> Wishes:
    """`gpu-fraction`, or `gpu-memory` in MiB. KAI gives the GPU to one container; it is what the pod has of it, by
    whichever container.
    """
    named = asked.pod.annotations.get("gpu-fraction-container-name", "").strip()
    if named and asked.lacks(named):
        yield Wish("weight", "", f"gpu-fraction-container-name={named[:_MAX_VALUE]}", _NO_CONTAINER)
    yield from _read(asked, "gpu-memory.limit", "memory", lambda text: str(quantities.quantity(text)))
    yield from _fraction_of_memory(asked, "gpu-fraction.limit")
    yield from _read(asked, "gpu-fraction", "weight", lambda text: str(weight_of(quantities.fraction(text))))
    yield from _fraction_of_memory(asked, "gpu-fraction")
    yield from _read(asked, "gpu-memory", "memory", lambda text: str(quantities.mebibytes(text)))
    yield from _weight(asked, "gpu-memory", quantities.mebibytes)


def _weight(asked: Asked, annotation: str, read: Callable[[str], int], own: bool = False) -> Wishes:
    """The weight of a part of the GPU's memory: what its scheduler counts for it."""
    if annotation not in asked.pod.annotations:
        return
    with_size = asked.gpu_memory()
    if with_size is not None:
        size = with_size
        yield from _read(
            asked, annotation, "weight", lambda text: str(weight_of(min(Fraction(1), Fraction(read(text), size)))), own
        )


def _fraction_of_memory(asked: Asked, annotation: str) -> Wishes:
    if annotation not in asked.pod.annotations:
        return
    size = asked.gpu_memory()
    if size is None:
        wrong = "the GPUs of this node differ in memory, or nobody tells how much they have: no limit of memory"
        yield Wish("memory", "", f"{annotation}={asked.pod.annotations[annotation][:_MAX_VALUE]}", wrong)
        return
    yield from _read(asked, annotation, "memory", lambda text: str(int(quantities.fraction(text) * size)))


# -- HAMi ----------------------------------------------------------------------------------------------

HAMI_DEVICES = "hami.io/vgpu-devices-allocated"
_LONGEST = 1 << 16


def hami(asked: Asked) -> Wishes:
    """`hami.io/vgpu-devices-allocated`: for each container `UUID,TYPE,MIB,CORES:` a device, and `;` behind it."""
    text = asked.pod.annotations.get(HAMI_DEVICES)
    if text is None:
        return
    source = f"{HAMI_DEVICES}={text[:_MAX_VALUE]}"
    try:
        segment, own = _hami_segment(asked, text)
        devices = [_hami_device(words) for words in segment.split(":") if words]
    except ValueError as error:
        yield Wish("memory", "", source, str(error))
        return
    memory = max((one for one, _ in devices), default=0)
    cores = max((one for _, one in devices), default=0)
    if memory << 20 > MAX_SIZE:
        yield Wish("memory", "", source, "no GPU has that much memory")
    elif memory:
        yield Wish("memory", str(memory << 20), source, own=own)
    yield from _cores(source, cores, own)


def names_no_containers(pod: Pod) -> bool:
    """Whether annotations of a pod are for several of its containers, by their places alone."""
    text = pod.annotations.get(HAMI_DEVICES)
    return text is not None and len([one for one in text[:_LONGEST].split(";") if one]) > 1


def _hami_segment(asked: Asked, text: str) -> tuple[str, bool]:
    if len(text) > _LONGEST:
        raise ValueError("this is too long")
    segments = text.removesuffix(";").split(";")
    filled = [one for one in segments if one]
    if len(filled) <= 1:  # the other containers of the pod have no GPU
        return "".join(filled), False
    if asked.pod.order and asked.container not in asked.pod.order:
        return "", False  # for debugging: it was added to a pod that ran
    order = asked.pod.order or asked.names
    if asked.pod.order and len(segments) < len(order):
        order = order[-len(segments) :]  # older ones leave out those that run before the others
    if len(order) != len(segments) or asked.container not in order:
        raise ValueError(f"it has {len(segments)} containers, and which is which cannot be told without an API server")
    return segments[order.index(asked.container)], True


def _hami_device(words: str) -> tuple[int, int]:
    parts = words.split(",")
    if len(parts) < 4:
        raise ValueError("a device is UUID,TYPE,MIB,CORES")
    return quantities.whole(parts[2]), quantities.whole(parts[3])


def _cores(source: str, cores: int, own: bool) -> Wishes:
    """Percent of a GPU: the most, as HAMi means it, and the weight, for where more was promised than there is. 0 and
    100 are no limit.
    """
    if cores > _UNLIMITED_CORES:
        yield Wish("cap", "", source, "take 0 to 100 percent of cores")
    elif 0 < cores < _UNLIMITED_CORES:
        yield Wish("cap", f"{cores}%", source, own=own)
        yield Wish("weight", str(weight_of(Fraction(cores, 100))), source, own=own)


def hami_resources(asked: Asked) -> Wishes:
    """`nvidia.com/gpumem`, `gpumem-percentage`, `gpucores` and `priority` of a container, where an API server tells."""
    limits = asked.pod.limits.get(asked.container, {})

    def limit(name: str, key: str, read: Callable[[str], str]) -> Wishes:
        if (text := limits.get(f"nvidia.com/{name}")) is not None:
            yield _wish(f"nvidia.com/{name}", text, key, read, own=True)

    yield from limit("gpumem", "memory", lambda text: str(quantities.mebibytes(text, quantities.count)))
    size = asked.gpu_memory() if "nvidia.com/gpumem-percentage" in limits else None
    if size is not None:
        bytes_each = size
        yield from limit("gpumem-percentage", "memory", lambda text: str(_percentage(text) * bytes_each // 100))
    if (text := limits.get("nvidia.com/gpucores")) is not None:
        try:
            yield from _cores(f"nvidia.com/gpucores={text[:_MAX_VALUE]}", quantities.count(text), own=True)
        except ValueError as error:
            yield Wish("cap", "", f"nvidia.com/gpucores={text[:_MAX_VALUE]}", str(error))
    yield from limit("priority", "class", _hami_priority)


def _percentage(text: str) -> int:
    percent = quantities.whole(text)
    if not 0 < percent <= 100:
        raise ValueError("take 1 to 100 percent")
    return percent


def _hami_priority(text: str) -> str:
    """0 goes before all others, and 1 stops while such a one runs."""
    classes = {"0": "latency", "1": "batch"}
    if text not in classes:
        raise ValueError("take 0 or 1")
    return classes[text]


# -- PriorityClass ---------------------------------------------------------------------------------------


def priority_class(asked: Asked) -> Wishes:
    """The class of a PriorityClass that is known by its name, which KAI has as a label; else batch for one below 0."""
    pod = asked.pod
    for name in (pod.labels.get("priorityClassName", ""), pod.priority_class):
        if name in asked.priority_classes:
            yield Wish("class", asked.priority_classes[name], f"priorityClassName={name}")
    if pod.priority is not None and pod.priority < 0:
        yield Wish("class", "batch", f"priority={pod.priority}")


DIALECTS: Mapping[str, Callable[[Asked], Wishes]] = {
    "granted": granted,
    "runlist": ours,
    "NvFractions": nv_fractions,
    "KAI": kai,
    "HAMi": hami,
    "HAMi's resources": hami_resources,
    "PriorityClass": priority_class,
}
"""In the order in which they are asked: for each setting the first value that is in order is taken."""
