"""Requests at the same moment, or one after the other, and how long they took."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.papers.common.driving import AHEAD_NS
from bench.papers.common.server import Server, ServerError
from bench.papers.common.task import Task

SKIPPED = 2
"""Requests at the beginning that are not counted."""

_PATIENCE_S = 120.0


@dataclass
class Asked:
    """In µs: of each request the time until all had ended, and each program's own; digests by program and request."""

    asked_us: list[float] = field(default_factory=list)
    each_us: dict[str, list[float]] = field(default_factory=dict)
    checks: dict[str, dict[int, str]] = field(default_factory=dict)


def ask(tasks: Sequence[Task], servers: Mapping[str, Server], requests: int, *, at_once: bool) -> Asked:
    """So many of each, and a few before that. Where they are not asked at once, the times of all are added up. Raises
    ServerError.
    """
    found = Asked(each_us={task.name: [] for task in tasks}, checks={task.name: {} for task in tasks})
    for number in range(SKIPPED + requests):
        total_us = 0.0
        for together in [list(tasks)] if at_once else [[task] for task in tasks]:
            due = time.monotonic_ns() + 2 * AHEAD_NS
            for task in together:
                servers[task.name].ask(task.name, number, due, ())
            answers = _answers([task.name for task in together], servers)
            took_us = {name: (answer["done"] - due) / 1e3 for name, answer in answers.items()}
            total_us += max(took_us.values())
            for name, answer in answers.items():
                if answer.get("check") is not None:
                    found.checks[name][number] = str(answer["check"])
                if number >= SKIPPED:
                    found.each_us[name].append(round(took_us[name], 1))
        if number >= SKIPPED:
            found.asked_us.append(round(total_us, 1))
    return found


def _answers(names: Sequence[str], servers: Mapping[str, Server]) -> dict[str, Mapping[str, Any]]:
    answers: dict[str, Mapping[str, Any]] = {}
    waiting = list({id(servers[name]): servers[name] for name in names}.values())
    until = time.monotonic() + _PATIENCE_S
    while missing := [name for name in names if name not in answers]:
        left = until - time.monotonic()
        if left <= 0:
            raise ServerError(f"{', '.join(missing)} did not answer in {_PATIENCE_S:g} s")
        for server in select.select(waiting, [], [], left)[0]:
            answers.update(server.read())
    return answers
