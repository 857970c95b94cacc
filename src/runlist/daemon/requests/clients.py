"""The clients of a process that are scheduled operation by operation, as people and tools see them.

All of it is the process' own word: numbers, which are bounded, and no text.
"""

from __future__ import annotations

from runlist.daemon.tasks.managed import ManagedTask
from runlist.planes.process.region.operations import MAX_SMS, Client, Operations, Rule
from runlist.units import duration
from runlist.views.structs import ClientView

MOST_PER_S = 1e9
"""No GPU does more in a second."""

MOST_SHARE = 10.0
"""Profiles may say that kernels take longer than they do, but not this much."""

_ALL = 0b111_111_111
_COMPLEMENTS = {0b010_100_000: "known complements", 0b011_101_111: "complements"}
"""Bit 3 * (class of client 0's kernel) + (class of the other), of unknown, compute and memory."""


def client_views(managed: ManagedTask) -> list[ClientView]:
    """The clients of a task's process; none where it tells of none."""
    told = None if managed.root is None else managed.root.quota.operations(managed.task.key.pid)
    return [] if told is None else [client_view(client, told) for client in told.clients]


def client_view(client: Client, told: Operations) -> ClientView:
    """One of them."""
    window_s = told.window_ns / 1e9
    waited = client.lately_deferred > 0
    return ClientView(
        client=client.index,
        operations=client.launched,
        operations_deferred=client.deferred,
        bounds_reached=client.opened,
        operations_per_s=round(min(client.lately_launched / window_s, MOST_PER_S), 1),
        deferred_per_s=round(min(client.lately_deferred / window_s, MOST_PER_S), 1),
        queued=client.queued,
        wait_us=round(client.lately_wait_ns / 1e3, 1) if waited else None,
        oldest_us=round(client.oldest_ns / 1e3, 1) if client.queued else None,
        sms_share=_sms_share(client, told),
        beside="at once" if client.index == 0 else beside(told.rule),
    )


def _sms_share(client: Client, told: Operations) -> float | None:
    if not (told.sms and client.lately_sm_ns):
        return None
    return round(min(client.lately_sm_ns / (told.window_ns * told.sms), MOST_SHARE), 4)


def beside(rule: Rule) -> str:
    """What a rule lets go beside a busy client 0, and how far ahead of an idle one, in a few words."""
    return ", ".join([*_beside_busy(rule), *_around(rule)])


def _around(rule: Rule) -> list[str]:
    ahead = [] if rule.ahead_ns is None else [f"{duration(rule.ahead_ns / 1e3)} ahead"]
    return [*ahead, *([f"after {duration(rule.rest_ns / 1e3)}"] if rule.rest_ns else [])]


def _beside_busy(rule: Rule) -> list[str]:
    pairs = rule.beside & _ALL
    if not pairs:
        return ["copies" if rule.copies else "nothing"]
    words = ["anything" if pairs == _ALL else _COMPLEMENTS.get(pairs, "some")]
    if rule.sms <= MAX_SMS:
        words.append(f"to {rule.sms} SMs")
    if rule.gate_ns is not None:
        words.append(f"to {duration(rule.gate_ns / 1e3)}")
    if not rule.copies:
        words.append("no copies")
    return words
