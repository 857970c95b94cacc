"""The gRPC service of one resource, as the kubelet calls it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import structlog

from runlist.errors import UsageError
from runlist.integrations.kubernetes import deviceplugin_autogen as api
from runlist.integrations.plugin.given import Ways, response
from runlist.integrations.plugin.pieces import Resource, Taken
from runlist.planes.interface import NodeGpu

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
PAIR_S = 2.0
"""How soon after the one resource a container's other one is allocated."""

MOST_CONTAINERS = 256
"""In one request; a kubelet asks for one."""

log = structlog.get_logger()


class Gpus:
    """The GPUs as they were last seen, and who waits for a change."""

    def __init__(self, gpus: list[NodeGpu]) -> None:
        self.now = gpus
        self._changed = asyncio.Event()

    def set(self, gpus: list[NodeGpu]) -> None:
        """Take what was seen, and wake those who wait if it is something else."""
        if gpus == self.now:
            return
        before = {gpu.uuid: gpu.sick for gpu in self.now}
        for gpu in gpus:
            if before.get(gpu.uuid, "") != gpu.sick:
                log.warning("a GPU changed", gpu=gpu.uuid, health=gpu.sick or "fit for work")
        self.now = gpus
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Wait for the next."""
        await self._changed.wait()


class Pairs:
    """Guesses that a container's share and its memory belong together. The kubelet allocates the resources of a
    container one right after the other, in any order, and does not say for whom: so what was just allocated of the
    one is where the other should be.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[str, str, float] = ("", "", 0.0)  # resource, GPU, when
        self._has_partner = False
        self._left: dict[str, Counter[str]] = {}

    def near(self, resource: str) -> str:
        """The GPU of the other resource that was allocated just now, or nothing. It may have had a partner: whether
        that was its container's, nobody knows.
        """
        other, gpu, when = self._last
        if not other or other == resource or self._clock() - when >= PAIR_S:
            return ""
        return "" if self._has_partner and gpu in self.spent(resource) else gpu

    def spent(self, resource: str) -> set[str]:
        """GPUs of which another resource had nothing left when the kubelet last spoke of it: a container that takes the
        one there gets the other elsewhere.
        """
        others = (left for name, left in self._left.items() if name != resource)
        return {gpu for left in others for gpu, count in left.items() if count <= 0}

    def told(self, resource: str, left: Counter[str]) -> None:
        """Take note of what each GPU has left of a resource."""
        self._left[resource] = left

    def allocated(self, resource: str, taken: Taken) -> str:
        """Take note of an allocation. The GPU of the other resource, where that would be the same container's, and is
        none of these; or nothing.
        """
        if resource in self._left:
            self._left[resource].subtract(dict.fromkeys(taken.gpus, taken.pieces))
        partner = "" if self._has_partner else self.near(resource)
        self._last, self._has_partner = (resource, taken.gpus[0], self._clock()), bool(partner)
        return "" if partner in taken.gpus else partner


class Service:
    """v1beta1.DevicePlugin of one resource. A request that makes no sense is refused by itself."""

    def __init__(self, resource: Resource, gpus: Gpus, ways: Callable[[], Ways], pairs: Pairs) -> None:
        self._resource = resource
        self._gpus = gpus
        self._ways = ways
        self._pairs = pairs

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """What of the interface is there."""
        return options()

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802, ARG002
        """All pieces, now and after every change."""
        while True:
            seen = self._gpus.now
            yield devices(self._resource, seen)
            while self._gpus.now is seen:
                await self._gpus.change()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Which pieces to take of those that are free."""
        await self._bound(request, context)
        answer = api.PreferredAllocationResponse()
        name, gpus = self._resource.name, self._gpus.now
        first, last = self._pairs.near(name), self._pairs.spent(name)
        for one in request.container_requests:
            available, needed = set(one.available_deviceIDs), one.must_include_deviceIDs
            self._pairs.told(name, self._resource.left(available, gpus))
            ids = self._resource.preferred(available, needed, one.allocation_size, gpus, first, last)
            answer.container_responses.append(api.ContainerPreferredAllocationResponse(deviceIDs=ids))
        return answer

    async def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """What a container gets with these pieces."""
        await self._bound(request, context)
        answer = api.AllocateResponse()
        gpus, ways = self._gpus.now, self._ways()
        try:
            every = [self._resource.taken(one.devices_ids, gpus) for one in request.container_requests]
        except UsageError as error:
            await self._refuse(context, str(error))
            raise  # that does not return
        for taken in every:
            elsewhere = self._pairs.allocated(self._resource.name, taken)
            if elsewhere:
                where = [elsewhere, *taken.gpus]
                log.warning("if one container asked for both, its share and memory are on different GPUs", gpus=where)
            answer.container_responses.append(response(self._resource, taken, gpus, ways, narrow=bool(elsewhere)))
        return answer

    async def _bound(self, request: Any, context: Any) -> None:
        """Refuse what would keep all others waiting."""
        if (count := len(request.container_requests)) > MOST_CONTAINERS:
            await self._refuse(context, f"{count:,} containers at once: {MOST_CONTAINERS} at most")

    async def _refuse(self, context: Any, reason: str) -> None:
        """End a call, and say so. Does not return."""
        log.warning("an allocation was refused", resource=self._resource.name, reason=reason)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)

    async def PreStartContainer(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """Nothing is to be done; the kubelet does not ask."""
        return api.PreStartContainerResponse()


def options() -> Any:
    """What of the interface the service has."""
    return api.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)


def devices(resource: Resource, gpus: list[NodeGpu]) -> Any:
    """The pieces of all GPUs as a message."""
    listed = api.ListAndWatchResponse()
    for gpu in gpus:
        topology = None if gpu.numa is None else api.TopologyInfo(nodes=[api.NUMANode(ID=gpu.numa)])
        health = UNHEALTHY if gpu.sick else HEALTHY
        listed.devices.extend(api.Device(ID=text, health=health, topology=topology) for text in resource.ids(gpu))
    return listed
