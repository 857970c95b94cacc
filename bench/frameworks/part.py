"""What a framework's program does: parts that are each checked once and then timed over and over."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.harness.child import serve


@dataclass(frozen=True)
class Part:
    """`result` runs from a fixed start and gives what must be the same bit for bit, as bytes; `step` is one unit of the
    work that is timed, with its end waited for.
    """

    result: Callable[[], bytes]
    step: Callable[[], object]


def run(parts: Mapping[str, Callable[[], Part]], facts: Callable[[], Mapping[str, Any]]) -> None:
    """Serve `check PART` (`hash`), `time PART SECONDS` (`seconds`, one a step) and `facts`, what the framework sees."""
    made: dict[str, Part] = {}

    def answer(line: str) -> Mapping[str, Any]:
        command, *words = line.split()
        if command == "facts":
            return facts()
        part = made.get(words[0]) or made.setdefault(words[0], parts[words[0]]())
        if command == "check":
            return {"hash": hashlib.sha256(part.result()).hexdigest()}
        return {"seconds": timed(part.step, float(words[1]))}

    serve(answer)


def timed(step: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each step, for about so long."""
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        step()
        taken.append(time.perf_counter() - began)
    return taken
