"""The clients that are scheduled operation by operation: in what order they stand, and their columns."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runlist.text import printable
from runlist.units import duration
from runlist.views.columns import NOTHING, Column, columns_of, percent
from runlist.views.structs import ClientView, TaskView


class ClientRow(msgspec.Struct, frozen=True):
    """A client, and the task of its process."""

    task: TaskView
    client: ClientView


def client_rows(tasks: Sequence[TaskView]) -> list[ClientRow]:
    """The clients of some tasks, each once. Those of a process with several are together; of processes that have one
    each, which are clients of MPS, the one of high priority comes first.
    """
    processes = {task.pid: task for task in sorted(tasks, key=lambda task: task.gpu, reverse=True)}
    found = [ClientRow(task, client) for task in processes.values() for client in task.clients]
    return sorted(found, key=lambda row: (row.task.gpu, _together(row.task), row.client.client, row.task.pid))


def _together(task: TaskView) -> int:
    return task.pid if len(task.clients) > 1 else 0


def _of_task(title: str) -> Column:
    (column,) = columns_of(title)
    return Column(title, lambda row: column.text(row.task), column.usual, column.number)


def _waits(client: ClientView) -> str:
    """How long operations waited that left the queue; of a queue that none left, how long the oldest waits."""
    if client.wait_us is not None:
        return duration(client.wait_us)
    return NOTHING if client.oldest_us is None else f"> {duration(client.oldest_us)}"


def _sm_time(client: ClientView) -> str:
    return NOTHING if client.sms_share is None else percent(client.sms_share)


CLIENT_COLUMNS = (
    Column("CLIENT", lambda row: f"{row.client.client} {'BE' if row.client.client else 'HP'}"),
    _of_task("PID"),
    Column("OPS/S", lambda row: f"{row.client.operations_per_s:,.0f}", number=True),
    Column("DEFERRED/S", lambda row: f"{row.client.deferred_per_s:,.0f}", number=True),
    Column("QUEUED", lambda row: str(row.client.queued), number=True),
    Column("WAITS", lambda row: _waits(row.client), number=True),
    Column("SM TIME", lambda row: _sm_time(row.client), number=True),
    Column("BESIDE HP", lambda row: printable(row.client.beside)),
    _of_task("COMMAND"),
)
