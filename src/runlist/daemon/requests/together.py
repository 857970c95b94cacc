"""Tasks that the GPU knows as one: the clients of one MPS server, managed or not, which share its SMs."""

from __future__ import annotations

from collections.abc import Iterable

from runlist.daemon.gpu.scheduler import Scheduler
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.placement.facts import environment_of
from runlist.daemon.tasks.managed import ManagedTask, Sms, SuspendedBy
from runlist.errors import NoPermissionError
from runlist.proc.owners import user_behind
from runlist.proc.process import owner_of
from runlist.protocol import environment_autogen as names
from runlist.units import parse_number

_MOST_SMS = 1_000_000
_BY_ROOT, _BY_ITS_USER = "by root", "by its user"


def pids_together(managed: ManagedTask, scheduler: Scheduler, census: MemoryCensus) -> list[int] | None:
    """The other processes that run, stop and have a slice with a task's; None for one that stands alone. Of which
    server a client is, its channel group tells, once that is known.
    """
    pid, gpu = managed.task.key
    clients, together = census.mps_clients(gpu), set(scheduler.fellows(managed.task))
    if pid in clients:
        together |= clients - {key.pid for key, other in scheduler.tasks.items() if other.group_ids}
    return sorted(together - {pid}) if together or pid in clients else None


def check_alone(managed: ManagedTask, scheduler: Scheduler, census: MemoryCensus, uid: int) -> None:
    """Raise NoPermissionError where suspending a task for its user would stop a process of somebody else, too, or may:
    of which server the clients are that are not managed nobody knows.
    """
    if uid != 0:
        check_others(managed, pids_together(managed, scheduler, census) or (), uid)


def check_others(managed: ManagedTask, others: Iterable[int], uid: int) -> None:
    """The same, where it is known who stops with it."""
    for pid in others:
        owner = owner_of(pid)
        if owner is not None and user_behind(owner) != user_behind(uid):
            raise NoPermissionError(
                f"process {managed.task.key.pid} is a client of an MPS server, and process {pid} of another user would "
                "stop with it: only root may suspend it"
            )


def by(managed: ManagedTask, uid: int) -> str:
    """Who suspends a task, in words. What root asked for stays root's."""
    before = managed.suspended_by.get(SuspendedBy.USER)
    return _BY_ROOT if uid == 0 or before == _BY_ROOT else _BY_ITS_USER


def is_by_its_user(managed: ManagedTask) -> bool:
    """Whether somebody has a task suspended who may not have others off with it."""
    return managed.suspended_by.get(SuspendedBy.USER) == _BY_ITS_USER


def together_notes(tasks: Iterable[ManagedTask], together: Iterable[list[int] | None]) -> list[str]:
    """A line for each task that does not stand alone, for the person who attached or suspended it."""
    return [
        f"process {managed.task.key.pid} is a client of an MPS server: it runs, stops and has a slice together with "
        f"the server's other clients ({', '.join(map(str, others)) or 'none now'})"
        for managed, others in zip(tasks, together, strict=True)
        if others is not None
    ]


def sms_of(managed: ManagedTask) -> Sms:
    """The SMs that a client of MPS may use. Its environment says so, which is read once, as by MPS at its start."""
    if managed.sms is not None:
        return managed.sms
    read = environment_of(managed.task.key.pid, (names.SMS, names.MPS_PERCENTAGE))
    given = {} if read is None else read
    number, percent = (parse_number(given.get(name, "")) for name in (names.SMS, names.MPS_PERCENTAGE))
    found = Sms(
        None if number is None or not 1 <= number <= _MOST_SMS else int(number),
        None if percent is None or not 0 < percent <= 100 else percent,
    )
    if read is not None:
        managed.sms = found
    return found
