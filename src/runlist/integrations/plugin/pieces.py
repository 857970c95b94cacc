"""Pieces of GPUs as devices of the kubelet: which there are, which to prefer, and what a set of them is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass

from runlist.errors import UsageError
from runlist.integrations.kubernetes import names
from runlist.integrations.plugin.ids import GIB, WHOLE, device_id, split_id
from runlist.planes.interface import NodeGpu


@dataclass(frozen=True, slots=True)
class Taken:
    """What a container takes: so many pieces of each of these GPUs."""

    gpus: tuple[str, ...]
    pieces: int


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of which each GPU has pieces: percent of its time, or GiB of its memory."""

    name: str

    @property
    def endpoint(self) -> str:
        """The name of its socket in the kubelet's folder."""
        return f"{self.name.replace('/', '-')}.sock"

    def pieces(self, gpu: NodeGpu) -> int:
        """How many a GPU has."""
        return WHOLE if self.name == names.SHARE_RESOURCE else gpu.memory // GIB

    def ids(self, gpu: NodeGpu) -> list[str]:
        """Ids of all of a GPU's."""
        return [device_id(self.name, gpu.uuid, number) for number in range(self.pieces(gpu))]

    def taken(self, ids: Collection[str], gpus: Sequence[NodeGpu]) -> Taken:
        """What a container takes with these ids: pieces of one GPU, or some GPUs whole. Raises UsageError for ids that
        are not offered, and for pieces of several GPUs, which no program could use as what was asked for.
        """
        known = {gpu.uuid: gpu for gpu in gpus}
        counted: Counter[str] = Counter()
        seen: set[str] = set()
        for text in ids:
            uuid, number = split_id(self.name, text)
            if uuid not in known or number >= self.pieces(known[uuid]):
                raise UsageError(f"{text} is not offered here")
            if text in seen:
                raise UsageError(f"{text} is there twice")
            seen.add(text)
            counted[uuid] += 1
        if not counted:
            raise UsageError(f"nothing of {self.name} is asked for")
        for uuid in counted:
            if known[uuid].sick:
                raise UsageError(f"{uuid} is not fit for work: {known[uuid].sick}")
        if len(counted) > 1 and any(count < self.pieces(known[uuid]) for uuid, count in counted.items()):
            have = ", ".join(f"{count} of {uuid}" for uuid, count in sorted(counted.items()))
            raise UsageError(
                f"{self.name}: {have}: no GPU has so much left, and pieces of several are of no use: ask for less, or "
                "for whole GPUs"
            )
        return Taken(tuple(sorted(counted)), min(counted.values()))

    def left(self, available: Collection[str], gpus: Sequence[NodeGpu]) -> Counter[str]:
        """How many of the available ids are of each GPU."""
        counted = Counter({gpu.uuid: 0 for gpu in gpus})
        for uuid, ids in self._by_gpu(available, counted).items():
            counted[uuid] = len(ids)
        return counted

    def _by_gpu(self, ids: Collection[str], known: Container[str]) -> dict[str, list[str]]:
        """Ids by their GPU, without those that are not offered."""
        found: dict[str, list[str]] = defaultdict(list)
        for text in sorted(ids):
            try:
                uuid, _ = split_id(self.name, text)
            except UsageError:
                continue
            if uuid in known:
                found[uuid].append(text)
        return found

    def preferred(
        self,
        available: Collection[str],
        needed: Collection[str],
        size: int,
        gpus: Sequence[NodeGpu],
        first: str = "",
        last: Collection[str] = (),
    ) -> list[str]:
        """Which of the available ids to take: `needed` and others, `size` in all, of one GPU. That is the GPU `first`
        if it has so much; else the one that has the least left of those that have enough, so that large pieces stay for
        those who need them, and one of `last` only where no other has enough. More than a GPU has is taken as whole
        GPUs. Ids that are not offered are left out; where they do not suffice it is what there is.
        """
        chosen = list(dict.fromkeys(needed))[: max(size, 0)]
        free = self._by_gpu(set(available) - set(chosen), {gpu.uuid for gpu in gpus})
        begun = {text.partition("::")[0] for text in chosen}

        def rank(uuid: str) -> tuple[bool, bool, bool, bool, int, str]:
            room, left = len(free[uuid]), size - len(chosen)
            enough = room >= left
            is_first = enough and uuid == first
            return uuid not in begun, not enough, not is_first, uuid in last, room if enough else -room, uuid

        while len(chosen) < size and free:
            uuid = min(free, key=rank)
            chosen += free.pop(uuid)[: size - len(chosen)]
        return chosen
