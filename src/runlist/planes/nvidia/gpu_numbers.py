"""The driver's own numbers of its GPUs: by these programs name them when they make a device."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from runlist.planes.nvidia.rm import status
from runlist.planes.nvidia.rm.client import RmClient, free_client, open_client
from runlist.planes.nvidia.rm.transport import Driver
from runlist.protocol.rm_autogen import MAX_GPUS, NO_GPU_ID, Class

_DEVICE, _SUBDEVICE = range(0xA0000001, 0xA0000003)


def gpu_numbers(driver: Driver) -> dict[int, str]:
    """The UUID of each GPU that answers, by its number. Raises RmError or OSError."""
    with contextlib.ExitStack() as stack:
        client = attached_client(driver, stack)
        return dict(each_gpu(client, _DEVICE, _SUBDEVICE))


def attached_client(driver: Driver, stack: contextlib.ExitStack) -> RmClient:
    """A client of our own with all GPUs attached; `stack` frees it, and closes its file."""
    file = driver.open()
    stack.callback(file.close)
    for fd in driver.attach_gpus(file):
        stack.callback(os.close, fd)
    client = open_client(file)
    stack.callback(free_client, client)
    return client


def each_gpu(client: RmClient, device: int, subdevice: int) -> Iterator[tuple[int, str]]:
    """Number and UUID of each GPU, whose device and subdevice have these handles until the next one is asked for. RM
    numbers devices its own way, so each is asked for its UUID. Raises RmError or OSError.
    """
    ids: tuple[int, ...] = client.control(client.handle, "GET_ATTACHED_IDS", ids=[NO_GPU_ID] * MAX_GPUS)["ids"]  # type: ignore[assignment]
    to_see = sum(number != NO_GPU_ID for number in ids)
    for number in range(MAX_GPUS):
        if not to_see:
            return
        try:
            client.allocate(Class.DEVICE, client.handle, device, device_id=number, client_share=client.handle)
        except status.RmError:
            continue  # no such number
        to_see -= 1
        client.allocate(Class.SUBDEVICE, device, subdevice)
        yield number, client.gpu_uuid(subdevice)
        client.free(device)
