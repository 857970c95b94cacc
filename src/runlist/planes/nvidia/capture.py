"""What the kernel plane is to capture of the requests to NVIDIA's driver: their numbers, and where in them is what."""

from __future__ import annotations

from runlist.planes.interface import Capture
from runlist.planes.nvidia.rm.commands import COMMANDS
from runlist.protocol import kernel_autogen as kernel
from runlist.protocol import rm_autogen as rm
from runlist.protocol.kernel_autogen import Kind, Verb
from runlist.protocol.rm_autogen import Class, Ioctl, Target
from runlist.structure import Structure

_SHAPE, _RULE = (Structure(kernel.STRUCTS[name]) for name in ("SHAPE", "RULE"))
_READ_AND_WRITE = 3
_TOLD = ("SET_TIMESLICE", "FIFO_DISABLE_CHANNELS")
"""By which a program undoes what it was given."""
_OWN = (*_TOLD, "SET_INTERLEAVE_LEVEL", "MAKE_REALTIME", "RESTART_RUNLIST")
"""By which it changes how it is scheduled. Each group needs GPFIFO_SCHEDULE once: it is left out."""
_ALL, _LAST_BYTE = 0xFFFFFFFF, 0xFF


def _request(number: int, size: int) -> int:
    return _READ_AND_WRITE << 30 | size << 16 | rm.MAGIC << 8 | number


def _shape(number: Ioctl, struct: str, verb: Verb, **fields: str) -> tuple[int, bytes]:
    """The shape of a request whose argument is a structure; `fields` names what is where."""
    argument = Structure(rm.STRUCTS[struct])
    places = {
        f"{name}_at": kernel.NOWHERE
        for name in ("client", "parent", "object", "class", "status", "source_client", "source", "params")
    }
    places |= {f"{name}_at": argument.offsets[field] for name, field in fields.items()}
    return _request(number, argument.size), bytes(_SHAPE.pack(verb=verb, bytes=argument.size, **places))


def _rule(kind: Kind, value: int, mask: int = _ALL, least: int = 0) -> bytes:
    return bytes(_RULE.pack(mask=mask, value=value, least=least, kind=kind))


_ALLOCATION = {
    "client": "root", "parent": "parent", "object": "new", "class": "class_", "status": "status", "params": "params",
}  # fmt: skip

CAPTURE = Capture(
    shapes=dict(
        (
            _shape(Ioctl.RM_ALLOC, "NVOS21_ALLOC", Verb.ALLOCATE, **_ALLOCATION),
            _shape(Ioctl.RM_ALLOC, "NVOS64_ALLOC", Verb.ALLOCATE, **_ALLOCATION),
            _shape(Ioctl.RM_FREE, "NVOS00_FREE", Verb.FREE, client="root", object="old", status="status"),
            _shape(
                Ioctl.RM_CONTROL, "NVOS54_CONTROL", Verb.CONTROL,
                client="client", object="object", **{"class": "command"}, status="status",
            ),
            _shape(
                Ioctl.DUP_OBJECT, "NVOS55_DUP", Verb.DUPLICATE, client="client", parent="parent", object="object",
                source_client="source_client", source="source", status="status",
            ),
            _shape(Ioctl.TRANSFER, "TRANSFER", Verb.TRANSFER, object="number", parent="size", status="argument"),
        )
    ),
    rules=(
        _rule(Kind.CLIENT, Class.ROOT),
        _rule(Kind.CLIENT, Class.ROOT_NON_PRIVILEGED),
        _rule(Kind.CLIENT, Class.ROOT_CLIENT),
        _rule(Kind.DEVICE, Class.DEVICE),
        _rule(Kind.SUBDEVICE, Class.SUBDEVICE),
        _rule(Kind.GROUP, Class.CHANNEL_GROUP),
        _rule(Kind.CHANNEL, rm.CHANNEL_BYTE, _LAST_BYTE, rm.ENGINES_FROM),
        _rule(Kind.COMPUTE, rm.COMPUTE_BYTE, _LAST_BYTE, rm.ENGINES_FROM),
        _rule(Kind.COPY, rm.COPY_BYTE, _LAST_BYTE, rm.ENGINES_FROM),
    ),
    watched={
        command.number: (kernel.WATCH_EVENT if command.name in _TOLD else 0)
        | (kernel.WATCH_OWN if command.name in _OWN else 0)
        | (kernel.WATCH_OTHERS | kernel.WATCH_PARTLY if command.name == "FIFO_DISABLE_CHANNELS" else 0)
        for command in COMMANDS.values()
        if command.target in (Target.GROUP, Target.CHANNEL) or command.name == "FIFO_DISABLE_CHANNELS"
    },
)  # fmt: skip
