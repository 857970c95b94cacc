"""Which GPUs are there and fit for work, by NVML: what the driver reports of errors (XIDs), and a GPU that does not
answer any more or again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pynvml

from runlist.planes.interface import NodeGpu
from runlist.planes.nvidia.nvml import NvmlError, open_session, text
from runlist.planes.nvidia.rm.transport import Driver

PROGRAMS_OWN = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that the fault of one program makes: the GPU is fit for others."""
SETTLE_S = 10.0
"""How long after an XID the driver's word that nothing need be done is not yet believed."""
IN_MIG_MODE = "it is in MIG mode, in which a container sees nothing of a whole GPU"
_PCI = Path("/sys/bus/pci/devices")


class Health:
    """Looks at the GPUs in rounds. A GPU that was seen once stays in the list. Use it from one thread at a time."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._stack: contextlib.ExitStack | None = None
        self._events: Any = None
        self._xids: dict[str, tuple[float, int]] = {}
        self._gpus: dict[str, NodeGpu] = {}
        self._is_whole = True  # all GPUs that were seen once are there
        self._is_silent = False  # one is there, and did not answer in this round

    def look(self, seconds: float) -> list[NodeGpu]:
        """Wait for news for so long at most; then all GPUs, in NVML's order."""
        ends, before = time.monotonic() + seconds, self._gpus
        self._is_silent = False
        try:
            self._wait(seconds)
            if self._stack is None:
                self._open()
            present = {gpu.uuid: gpu for gpu in self._present()}
        except (pynvml.NVMLError, NvmlError, OSError) as error:
            present, gone = {}, f"NVML: {error}"
            self._is_silent = self._stack is not None  # the driver is there
        else:
            gone = "the driver has it no more"
        self._is_whole = bool(present) and present.keys() >= before.keys()
        missing = {uuid: gpu for uuid, gpu in before.items() if uuid not in present}
        for uuid, gpu in missing.items():
            missing[uuid] = msgspec.structs.replace(gpu, sick=gpu.sick if gpu.sick.startswith("XID") else gone)
            if not self._is_silent:  # one that comes back was reset
                self._xids.pop(uuid, None)
        self._gpus = missing | present
        if self._gpus == before:  # whatever ended the wait, whoever looks in rounds does so in peace
            time.sleep(max(0.0, ends - time.monotonic()))
        return sorted(self._gpus.values(), key=lambda gpu: (gpu.index, gpu.uuid))

    def close(self) -> None:
        """End the session with NVML."""
        stack, self._stack, self._events = self._stack, None, None
        if stack is not None:
            with contextlib.suppress(pynvml.NVMLError):
                stack.close()

    def _open(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(open_session(self._driver))
            events = None
            with contextlib.suppress(pynvml.NVMLError):  # a driver that tells no XIDs
                events = pynvml.nvmlEventSetCreate()
                stack.callback(pynvml.nvmlEventSetFree, events)
                for _, handle in self._handles():
                    with contextlib.suppress(pynvml.NVMLError):
                        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
            self._events = events
            self._stack = stack.pop_all()

    def _wait(self, seconds: float) -> None:
        """Wait in the session that is open. It does not see GPUs that come back, and one of its GPUs that is lost can
        make it deaf: then the next one is needed.
        """
        try:
            self._hear(seconds)
        except pynvml.NVMLError:
            self.close()
        if not self._is_whole:
            self.close()

    def _hear(self, seconds: float) -> None:
        """Take the XIDs that are there, after waiting for the first."""
        if self._events is None:
            return
        wait_ms = int(seconds * 1000)
        while True:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, wait_ms)
            except pynvml.NVMLError_Timeout:
                return
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError and event.eventData not in PROGRAMS_OWN:
                for uuid in self._named(event.device):
                    self._xids[uuid] = (time.monotonic(), int(event.eventData))
            wait_ms = 0

    def _named(self, device: Any) -> list[str]:
        """The UUID of an event's device; all GPUs for a device that cannot be told."""
        try:
            return [text(pynvml.nvmlDeviceGetUUID(device))]
        except pynvml.NVMLError:
            return list(self._gpus)

    def _present(self) -> Iterator[NodeGpu]:
        for index, handle in self._handles():
            with self._of_one():
                uuid = text(pynvml.nvmlDeviceGetUUID(handle))
                memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
                known = self._gpus.get(uuid)
                if known is None:
                    known = NodeGpu(uuid, index, memory, _minor(handle), _numa(handle))
                yield msgspec.structs.replace(known, index=index, memory=memory, sick=self._sickness(uuid, handle))

    def _handles(self) -> Iterator[tuple[int, Any]]:
        """GPUs by their index, but those that do not answer."""
        for index in range(pynvml.nvmlDeviceGetCount()):
            with self._of_one():
                yield index, pynvml.nvmlDeviceGetHandleByIndex(index)

    @contextlib.contextmanager
    def _of_one(self) -> Iterator[None]:
        """Where one GPU is asked, which may be lost, or not answer."""
        try:
            yield
        except pynvml.NVMLError as error:
            self._is_silent |= not isinstance(error, pynvml.NVMLError_GpuIsLost)

    def _sickness(self, uuid: str, handle: Any) -> str:
        if uuid not in self._xids:
            return IN_MIG_MODE if _is_in_mig_mode(handle) else ""
        since, xid = self._xids[uuid]
        if time.monotonic() - since > SETTLE_S and _needs_nothing(handle):
            del self._xids[uuid]
            return ""
        return f"XID {xid}"


def _needs_nothing(handle: Any) -> bool:
    """Whether the driver says that a GPU needs no reset; False where it does not tell."""
    field = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    if field is None:
        return False
    try:
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [field])
    except pynvml.NVMLError:
        return False
    return bool(value.nvmlReturn == pynvml.NVML_SUCCESS and value.value.uiVal == pynvml.NVML_GPU_RECOVERY_ACTION_NONE)


def _is_in_mig_mode(handle: Any) -> bool:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:  # most cannot be
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def _minor(handle: Any) -> int | None:
    try:
        return int(pynvml.nvmlDeviceGetMinorNumber(handle))
    except pynvml.NVMLError:
        return None


def _numa(handle: Any) -> int | None:
    """The NUMA node that a GPU is at, as the kernel tells; None where it has none."""
    try:
        bus = text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower()
        node = int((_PCI / bus[-12:] / "numa_node").read_text())  # NVML's domain has 8 digits, the kernel's 4
    except (pynvml.NVMLError, OSError, ValueError):
        return None
    return node if node >= 0 else None
