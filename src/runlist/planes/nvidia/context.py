"""The controls of one process on one GPU, and how to undo them.

A `GpuContext` remembers the slices that it found. `undo()` always has the controls that put everything back, in an
order that is safe to replay at any moment and from any process that has the open file: slices first, so that no two
tenants run at tiny slices, and resuming last. Call `will_touch` before a control that `undo()` does not cover yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from runlist.model import MAX_TIMESLICE_US, Engine
from runlist.planes.interface import Prepared, Undo
from runlist.planes.nvidia import undo
from runlist.planes.nvidia.controls import ROWS, RmControl
from runlist.planes.nvidia.objects import GpuObjects, Group
from runlist.planes.nvidia.rm import status
from runlist.planes.nvidia.rm.client import RawControl, RmClient, raw
from runlist.planes.nvidia.rm.commands import COMMAND_NAMES, COMMANDS, is_channel
from runlist.planes.nvidia.rm.status import ObjectNotFound, RmError, check
from runlist.planes.nvidia.rm.transport import OpenFile
from runlist.protocol.rm_autogen import HANDLE_INFO_CLASS, MAX_DISABLE_CHANNELS, Status, Target

_Channel = tuple[int, int]
"""A client, and the handle of a channel there."""


class GpuContext:
    """One RM client's channel groups on one GPU. Every method raises the RM status' own exception, or OSError.

    A group that its process freed meanwhile is dropped without an error; `groups` has the others.
    """

    def __init__(self, client: RmClient, objects: GpuObjects) -> None:
        self.rm = client
        self.gpu = objects.gpu
        self.subdevice = objects.subdevice
        self.groups: dict[int, Group] = {group.handle: group for group in objects.groups}
        self._prepared: dict[tuple[bool, bool], list[RawControl]] = {}  # packed once: rotation is hot
        self._at_once: Prepared | None = None
        self.original_us: dict[int, int] = self.timeslices()
        self._given_us: dict[int, int] = {}  # slices that we set
        self._ids = self._ask_ids()
        self._touched: set[str] = set()  # controls, by name

    @property
    def client(self) -> int:
        return self.rm.handle

    @property
    def handle(self) -> OpenFile:
        return self.rm.file

    @property
    def channels(self) -> int:
        return sum(len(group.channels) for group in self.groups.values())

    @property
    def competing(self) -> int:
        return len(self._groups(Engine.COMPUTE))

    @property
    def group_ids(self) -> list[int]:
        return [self._ids[group.handle] for group in self._groups(Engine.COMPUTE) if group.handle in self._ids]

    @property
    def found_us(self) -> int:
        return max(self.original_us.values(), default=0)

    def forget_groups(self) -> None:
        self.groups.clear()
        self._forget_prepared()

    def grow(self, group: Group) -> bool:
        """Take the channels that a group has got since it was found; whether there are any, or its engine shows now."""
        known = self.groups.get(group.handle)
        if known is None:
            return False
        late = sorted({*group.channels} - {*known.channels})
        engine = min(known.engine, group.engine, key=list(Engine).index)
        if not late and engine == known.engine:
            return False
        self.groups[group.handle] = Group(group.handle, engine, (*known.channels, *late))
        self._forget_prepared()
        self._ids = self._ask_ids()
        return True

    # -- slices ------------------------------------------------------------------------------------

    def timeslices(self, engine: Engine | None = None) -> dict[int, int]:
        """Current slices in µs by group handle, of one engine's groups or of all."""
        slices = {}
        for group in self._groups(engine):
            try:
                reply = self.rm.control(group.handle, "GET_TIMESLICE")
            except ObjectNotFound:
                self._drop(group)
                continue
            slices[group.handle] = int(reply["timeslice_us"])  # type: ignore[arg-type]
        return slices

    def set_timeslice(self, microseconds: int | None) -> None:
        """Set every group's slice; None sets each back to the slice that it was found with.

        A copy group with nearly that slice keeps it: its exact length does not matter, and each control takes the
        driver's lock for 0.3 ms.
        """
        if microseconds is not None and not 1 <= microseconds <= MAX_TIMESLICE_US:
            raise ValueError(f"a timeslice is 1 to {MAX_TIMESLICE_US} µs, not {microseconds}")
        for group in self._groups():
            wanted = self.original_us[group.handle] if microseconds is None else microseconds
            given = self._given_us.get(group.handle, 0)
            if group.engine == Engine.COMPUTE or microseconds is None or not wanted / 2 < given < wanted * 2:
                self._on_group(group, "SET_TIMESLICE", timeslice_us=wanted)
                self._given_us[group.handle] = wanted

    def wrong_timeslices(self, microseconds: int | None) -> bool:
        """Whether a compute group's slice differs from that of `set_timeslice(microseconds)`."""
        found = self.timeslices(Engine.COMPUTE)
        if not found:  # the context was closed, most likely: see which groups are left
            self.timeslices()
        return any(
            actual != (self.original_us[handle] if microseconds is None else microseconds)
            for handle, actual in found.items()
        )

    def take_as_original(self) -> None:
        """Remember the compute groups' current slices as those to put back: their process has just set them itself."""
        self.original_us |= self.timeslices(Engine.COMPUTE)

    # -- running or not ----------------------------------------------------------------------------

    def suspend(self) -> None:
        """Disable all channels; running work is preempted, and goes on where it was after `resume`."""
        self._disable(True)

    def resume(self) -> None:
        """Enable all channels."""
        self._disable(False)

    def rouse(self) -> None:
        """Set every slice once more, and enable every channel, group by group: what `put_back` does to a process that
        the GPU had forgotten.
        """
        for group in self._groups():
            given = self._given_us.get(group.handle, self.original_us[group.handle])
            self._on_group(group, "SET_TIMESLICE", timeslice_us=given)
        self._drop_freed()
        for control in self._enabling():
            self._send(control)

    def prepared_suspend(self) -> Prepared:
        if self._at_once is None:
            both = self._suspending(True, computing=True), self._enabling()
            self._at_once = Prepared(*(tuple(map(self.rm.prepared, each)) for each in both))
        return self._at_once

    def suspend_at_once(self, others: Sequence[GpuContext]) -> None:
        """The driver takes channels of any client in one list."""
        channels = [channel for context in (self, *others) for channel in context._computing()]
        for control in self._disabling(True, [channels]):
            self._send(control)

    def resume_at_once(self) -> None:
        """Enable what computes: the rest is."""
        self._disable(False, computing=True)

    def preempt(self) -> None:
        """Take the compute groups off the GPU once; they compete again at once."""
        for group in self._groups(Engine.COMPUTE):
            self._on_group(group, "PREEMPT", wait=1)

    # -- the controls of the table -----------------------------------------------------------------

    def set_control(self, name: str, word: str | None) -> None:
        """Set the control of that name to one of its words; None for the driver's default."""
        self.will_touch(name)
        for control in self._controls(ROWS[name], word):
            try:
                self._send(control)
            except ObjectNotFound:
                if control.object not in self.groups:
                    raise
                self._drop(self.groups[control.object])

    # -- undo --------------------------------------------------------------------------------------

    def will_touch(self, name: str) -> bool:
        new = name not in self._touched
        self._touched.add(name)
        return new

    def undo(self) -> Undo:
        return [undo.pack(self.client, control) for control in self.undo_controls()]

    def put_back(self) -> list[str]:
        troubles = []
        for control in self.undo_controls():
            try:
                codes = set(undo.send(self.rm, control)) - {status.NV_OK, status.NO_PERMISSION, *status.MISSING}
                call = f"undo of 0x{control.command:08x}"
                troubles += [str(status.error_class(code)(code, call)) for code in codes]
            except OSError as error:
                troubles.append(f"undo of 0x{control.command:08x}: {error.strerror}")
        return troubles

    def undo_controls(self) -> list[RawControl]:
        """The controls that put everything back, in the order to send them."""
        controls = [
            raw(COMMANDS["SET_TIMESLICE"], group.handle, timeslice_us=self.original_us[group.handle])
            for group in self._groups()
        ]
        for name, row in ROWS.items():
            if name in self._touched:
                controls += self._controls(row)
        return [*controls, *self._enabling()]

    # ----------------------------------------------------------------------------------------------

    def _ask_ids(self) -> dict[int, int]:
        """Ids on the GPU of the compute groups, by handle; empty where the driver does not tell."""
        ids = {}
        with contextlib.suppress(RmError):
            for group in self._groups(Engine.COMPUTE):
                ids[group.handle] = int(self.rm.control(group.handle, "GET_INFO")["group_id"])  # type: ignore[arg-type]
        return ids

    def _groups(self, engine: Engine | None = None) -> list[Group]:
        return [group for group in self.groups.values() if engine is None or group.engine == engine]

    def _drop(self, group: Group) -> None:
        self.groups.pop(group.handle, None)
        self._forget_prepared()

    def _forget_prepared(self) -> None:
        """Its groups are others now."""
        self._prepared.clear()
        self._at_once = None

    def _on_group(self, group: Group, name: str, **values: int) -> None:
        try:
            self.rm.control(group.handle, name, **values)
        except ObjectNotFound:
            self._drop(group)

    def _send(self, control: RawControl) -> None:
        code, _ = self.rm.send(control)
        self._check(code, control)

    def _check(self, code: int, control: RawControl) -> None:
        check(code, f"{COMMAND_NAMES[control.command]} on 0x{control.object:08x} of client 0x{self.rm.handle:08x}")

    def _disable(self, disable: bool, *, computing: bool = False) -> None:
        try:
            for control in self._suspending(disable, computing=computing):
                self._send(control)
        except RmError:
            self._drop_freed()  # one freed channel fails the whole list
            for control in self._suspending(disable, computing=computing):
                for code in undo.send(self.rm, control):
                    if code != Status.INVALID_CHANNEL:  # it is just being freed: its handle is still there
                        self._check(code, control)

    def _drop_freed(self) -> None:
        """Drop the groups, and the channels of others, that their process has freed."""
        self.timeslices()
        for group in self._groups():
            left = tuple(channel for channel in group.channels if self._is_there(channel))
            if len(left) < len(group.channels):
                self._drop(group)
                if left:
                    self.groups[group.handle] = Group(group.handle, group.engine, left)

    def _is_there(self, channel: int) -> bool:
        """Whether it is an object of the client, and a channel: handles are given out again."""
        try:
            reply = self.rm.control(self.rm.handle, "GET_HANDLE_INFO", object=channel, index=HANDLE_INFO_CLASS)
        except ObjectNotFound:
            return False
        return is_channel(int(reply["result"]))  # type: ignore[arg-type]

    def _suspending(self, disable: bool, *, computing: bool) -> list[RawControl]:
        if (disable, computing) not in self._prepared:
            channels = self._computing() if computing else self._channels(self._groups())
            self._prepared[disable, computing] = self._disabling(disable, [channels])
        return self._prepared[disable, computing]

    def _enabling(self) -> list[RawControl]:
        """Group by group, so that one freed group cannot keep the others suspended."""
        return self._disabling(False, [self._channels([group]) for group in self._groups()])

    def _computing(self) -> list[_Channel]:
        """Without its copy groups, where there are others: each channel takes the driver time."""
        return self._channels(self._groups(Engine.COMPUTE) or self._groups())

    def _channels(self, groups: Iterable[Group]) -> list[_Channel]:
        return [(self.rm.handle, channel) for group in groups for channel in group.channels]

    def _disabling(self, disable: bool, lists: list[list[_Channel]]) -> list[RawControl]:
        """FIFO_DISABLE_CHANNELS for each list of channels, in as many controls as it needs."""
        controls = []
        for channels in lists:
            for start in range(0, len(channels), MAX_DISABLE_CHANNELS):
                part = channels[start : start + MAX_DISABLE_CHANNELS]
                controls.append(
                    raw(
                        COMMANDS["FIFO_DISABLE_CHANNELS"],
                        self.subdevice,
                        disable=int(disable),
                        count=len(part),
                        clients=[client for client, _ in part],
                        channels=[channel for _, channel in part],
                    )
                )
        return controls

    def _controls(self, row: RmControl, word: str | None = None) -> list[RawControl]:
        """The RM controls that set a control of the table to a word, or back to its default."""
        command, params = COMMANDS[row.command], row.params[row.default if word is None else word]
        groups = self._groups(Engine.COMPUTE if row.compute else None)
        if command.target is Target.GROUP:
            return [raw(command, group.handle, **params) for group in groups]
        if "channel" not in command.parameters.names:
            return [raw(command, self.subdevice, **params)]
        channels = [channel for group in groups for channel in group.channels]
        return [raw(command, self.subdevice, channel=channel, **params) for channel in channels]
