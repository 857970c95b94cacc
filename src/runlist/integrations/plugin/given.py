"""What a container gets with its pieces of a GPU: its device nodes, the library with its preload, the daemon's socket
for messages, and annotations by which the node agent knows what was granted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runlist.integrations.cdi.spec import DEVICE_NODES, LIBRARY, MESSAGES_FOLDER, common_environment
from runlist.integrations.kubernetes import deviceplugin_autogen as api
from runlist.integrations.kubernetes import names
from runlist.integrations.plugin.ids import GIB, WHOLE
from runlist.integrations.plugin.pieces import Resource, Taken
from runlist.planes.interface import NodeGpu
from runlist.protocol import environment_autogen as variables

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NARROWED = "CUDA_VISIBLE_DEVICES"
NONE = "void"
"""What NVIDIA's runtime takes for: nothing of yours."""


@dataclass(frozen=True, slots=True)
class Ways:
    """How containers get what they need. `library` and `messages` are the host's paths. With `cdi` the runtime gives
    the GPUs by CDI: ours, and those of `others` (NVIDIA's kind), which may be none.
    """

    library: Path | None
    messages: Path | None
    cdi: bool = False
    others: str = ""
    memory_follows: bool = True


def response(resource: Resource, taken: Taken, gpus: Sequence[NodeGpu], ways: Ways, narrow: bool = False) -> Any:
    """The answer to Allocate. With `narrow` the container may have got another GPU with another resource: then its
    programs take these alone.
    """
    answer = api.ContainerAllocateResponse()
    known = {gpu.uuid: gpu for gpu in gpus}
    smallest = min(known[uuid].memory for uuid in taken.gpus)
    listed = ",".join(taken.gpus)
    if resource.name == names.SHARE_RESOURCE:
        answer.annotations[names.GRANTED_SHARE] = str(taken.pieces)
        answer.annotations[names.GRANTED_GPUS] = listed
        memory = smallest * taken.pieces // WHOLE if ways.memory_follows and taken.pieces < WHOLE else None
    else:
        memory = taken.pieces * GIB
    if memory is not None:
        answer.annotations[names.GRANTED_MEMORY] = str(memory)
        answer.annotations[names.GRANTED_MEMORY_GPUS] = listed
        answer.envs[variables.MEMORY] = str(memory)
    if narrow:
        answer.envs[NARROWED] = listed
    if ways.cdi:
        for uuid in taken.gpus:
            kinds = [kind for kind in (ways.others, names.CDI_KIND) if kind]
            answer.cdi_devices.extend(api.CDIDevice(name=f"{kind}={uuid}") for kind in kinds)
        answer.envs[VISIBLE] = NONE
        return answer
    answer.envs[VISIBLE] = listed
    answer.envs.update(common_environment(ways.library is not None, ways.messages is not None))
    nodes = [path for path in DEVICE_NODES if Path(path).exists()]
    nodes += [f"/dev/nvidia{minor}" for uuid in taken.gpus if (minor := known[uuid].minor) is not None]
    answer.devices.extend(api.DeviceSpec(container_path=path, host_path=path, permissions="rw") for path in nodes)
    if ways.library is not None:
        answer.mounts.append(api.Mount(container_path=LIBRARY, host_path=str(ways.library), read_only=True))
    if ways.messages is not None:
        answer.mounts.append(api.Mount(container_path=MESSAGES_FOLDER, host_path=str(ways.messages), read_only=True))
    return answer
