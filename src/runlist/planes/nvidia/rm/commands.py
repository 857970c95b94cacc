"""RM's protocol as data: classes, ioctls, and one table of controls.

Source: the driver's open kernel modules, tags 550.120 to 595.45.04 (sdk/nvidia/inc/ctrl, nvos.h), and runs on an H200
with the stock driver 580.159.04. docs/driver-protocol.md tells what each control does in practice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum

from runlist.structure import Structure as Layout


class Class(IntEnum):
    """Classes of RM objects that matter here."""

    ROOT_CLIENT = 0x41
    DEVICE = 0x80
    SUBDEVICE = 0x2080
    EVENT_BUFFER = 0x90CD
    MEMORY_DEVICELESS = 0x90CE
    CHANNEL_GROUP = 0xA06C

    @staticmethod
    def is_channel(number: int) -> bool:
        """GPFIFO channels of every generation end in 6F: C36F Volta, C46F Turing, C56F Ampere, C86F Hopper, C96F,
        CA6F Blackwell.
        """
        return number & 0xFF == 0x6F

    @staticmethod
    def is_compute(number: int) -> bool:
        """Compute engines end in C0: C3C0 Volta … CBC0 Hopper. They are children of a channel."""
        return number > 0xA000 and number & 0xFF == 0xC0

    @staticmethod
    def is_copy(number: int) -> bool:
        """Copy engines end in B5: C3B5 Volta … C8B5 Hopper. They are children of a channel."""
        return number > 0xA000 and number & 0xFF == 0xB5


class Ioctl(IntEnum):
    """Numbers of the ioctls on /dev/nvidiactl (magic 'F')."""

    RM_FREE = 0x29
    RM_CONTROL = 0x2A
    RM_ALLOC = 0x2B
    RM_MAP_MEMORY = 0x4E
    REGISTER_FD = 0xC9
    """On a GPU's own device file: the control file that goes with it."""


NVOS54_CONTROL = Layout("client:I object:I command:I flags:I params:Q params_size:I status:I")
NVOS21_ALLOC = Layout("root:I parent:I new:I class_:I params:Q params_size:I status:I")
NVOS00_FREE = Layout("root:I parent:I old:I status:I")
NVOS33_MAP_MEMORY = Layout(
    "client:I device:I memory:I 4x offset:Q length:Q linear:Q status:I flags:I fd:i 4x"  # with the descriptor to map
)
REGISTER_FD = Layout("control_fd:i")

MAP_READ_ONLY = 1
"""Flag of RM_MAP_MEMORY."""

MEMORY_CACHED = 1 << 29
"""`attr` of a memory: cached by the CPU."""

MEMORY_USER_READ_ONLY = 1 << 22
"""`attr2` of a memory: who allocates it may only read it. RM demands it of an event buffer's memories."""

ALLOCATIONS: dict[Class, Layout] = {
    Class.DEVICE: Layout(
        "device_id:I client_share:I target_client:I target_device:I flags:I 4x va_size:Q va_start:Q va_limit:Q "
        "va_mode:I 4x"
    ),
    Class.SUBDEVICE: Layout("subdevice_id:I"),
    Class.MEMORY_DEVICELESS: Layout("24x attr:I attr2:I 32x size:Q 56x"),
    Class.EVENT_BUFFER: Layout(
        "header_address:Q records_address:Q record_size:I record_count:I vardata_address:Q vardata_size:I "
        "records_threshold:I notification:Q vardata_threshold:I subdevice:I flags:I header:I records:I vardata:I"
    ),
}
"""Parameters with which objects of our own are allocated."""


class Target(Enum):
    """The kind of object that a control is sent to."""

    CLIENT = "client"
    SUBDEVICE = "subdevice"
    GROUP = "channel group"
    CHANNEL = "channel"
    EVENT_BUFFER = "event buffer"


class Privilege(Enum):
    """Who may send a control on a descriptor that it holds."""

    NONE = "anyone"
    NICE = "root or CAP_SYS_NICE"
    ADMIN = "root or CAP_SYS_ADMIN"


@dataclass(frozen=True)
class Command:
    """One control: its number, what it is sent to, who may send it, and its parameters.

    `older` are shorter layouts of earlier drivers, tried when the driver refuses the size.
    """

    name: str
    number: int
    target: Target
    privilege: Privilege
    layout: Layout
    effect: str
    older: tuple[Layout, ...] = field(default=())


MAX_DISABLE_CHANNELS = 64
"""Channels that one FIFO_DISABLE_CHANNELS takes."""

HANDLE_INFO_PARENT = 1
HANDLE_INFO_CLASS = 2

MAX_GPUS = 32
"""GPUs that RM can attach: entries of GET_ATTACHED_IDS."""

NO_GPU_ID = 0xFFFFFFFF

EVENT_BUFFER_KEEP_NEWEST = 2
"""Flag of EVENT_BUFFER_ENABLE: a full buffer overwrites its oldest records."""

SWITCH_LOG_SIMPLE = 1
"""Level of detail of BIND_SWITCH_LOG: only where a context's time on the GPU starts and ends."""

_SLICE = "timeslice_us:Q"
_LIST = f"{MAX_DISABLE_CHANNELS}I"

_TABLE = (
    Command("GET_ATTACHED_IDS", 0x201, Target.CLIENT, Privilege.NONE, Layout(f"ids:{MAX_GPUS}I"),
            "ids of the GPUs that RM has attached; the rest is NO_GPU_ID"),
    Command("GET_HANDLE_INFO", 0xD02, Target.CLIENT, Privilege.NONE, Layout("object:I index:I result:Q"),
            "class or parent of one of the client's objects"),
    Command("GET_CHILD_HANDLE", 0xD05, Target.CLIENT, Privilege.NONE, Layout("parent:I class_:I object:I"),
            "the first child of a class"),
    Command("GET_GID_INFO", 0x2080014A, Target.SUBDEVICE, Privilege.NONE, Layout("index:I flags:I length:I data:256s"),
            "the GPU's UUID, as text with flags 0"),
    Command("GET_TIMESLICE", 0xA06C0104, Target.GROUP, Privilege.NONE, Layout(_SLICE), "the timeslice in µs"),
    Command("SET_TIMESLICE", 0xA06C0103, Target.GROUP, Privilege.NONE, Layout(_SLICE), "set the slice in µs, at once"),
    Command("PREEMPT", 0xA06C0105, Target.GROUP, Privilege.NONE, Layout("wait:B manual_timeout:B 2x timeout_us:I"),
            "take the group off the GPU now; it competes again at once"),
    Command("GET_INFO", 0xA06C0106, Target.GROUP, Privilege.NONE, Layout("group_id:I"), "its id on its runlist"),
    Command("SET_INTERLEAVE_LEVEL", 0xA06C0107, Target.GROUP, Privilege.NICE, Layout("level:I"),
            "how often the runlist names the group"),
    Command("MAKE_REALTIME", 0xA06C0110, Target.GROUP, Privilege.NICE, Layout("realtime:B"),
            "keep the group's context on the GPU; the others then yield only at block boundaries"),
    Command("GPFIFO_SCHEDULE", 0xA06C0101, Target.GROUP, Privilege.NONE, Layout("enable:B skip_submit:B skip_enable:B"),
            "put the group on its runlist or take it off; taking off does not stop one that runs",
            older=(Layout("enable:B skip_submit:B"),)),
    Command("RESTART_RUNLIST", 0xA06F0111, Target.CHANNEL, Privilege.NICE, Layout("force:B bypass_wait:B"),
            "expire the current slice of the channel's runlist"),
    Command("FIFO_DISABLE_CHANNELS", 0x2080110B, Target.SUBDEVICE, Privilege.NONE,
            Layout(f"disable:B 3x count:I only_scheduling:B rewind:B 6x event:Q clients:{_LIST} channels:{_LIST}"),
            "suspend channels, preempting what runs, or resume them"),
    Command("SET_CTXSW_PREEMPTION_MODE", 0x20801210, Target.SUBDEVICE, Privilege.NONE,
            Layout("flags:I channel:I graphics:I compute:I route_flags:I 4x route:Q"),
            "where a channel's work may be interrupted (flags 1: set compute)"),
    Command("FIFO_RUNLIST_SET_SCHED_POLICY", 0x20801115, Target.SUBDEVICE, Privilege.NICE, Layout("flags:I policy:I"),
            "the scheduling policy of all the GPU's runlists"),
    Command("TIMER_GET_TIME", 0x20800403, Target.SUBDEVICE, Privilege.NONE, Layout("time_ns:Q"),
            "the GPU's clock, which follows CLOCK_REALTIME"),
    Command("BIND_SWITCH_LOG", 0x20801238, Target.SUBDEVICE, Privilege.NONE,
            Layout("event_buffer:I record_size:I level_of_detail:I event_filter:I all_users:B 3x reason:I"),
            "write the GPU's context switches to an event buffer (GR_FECS_BIND_EVTBUF_FOR_UID_V2)"),
    Command("EVENT_BUFFER_ENABLE", 0x90CD0101, Target.EVENT_BUFFER, Privilege.NONE, Layout("enable:B 3x flags:I"),
            "start or stop writing to the buffer"),
    Command("EVENT_BUFFER_FLUSH", 0x90CD0104, Target.EVENT_BUFFER, Privilege.NONE, Layout(""),
            "write now what the GPU has logged; by itself RM does so every 33 ms"),
)  # fmt: skip

COMMANDS: dict[str, Command] = {command.name: command for command in _TABLE}
COMMAND_NAMES: dict[int, str] = {command.number: command.name for command in _TABLE}
