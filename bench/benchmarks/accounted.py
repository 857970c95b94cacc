"""What the library accounts for, against what the driver says that a process holds, for every way to take memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bench.harness import library
from bench.harness.child import Child, python
from bench.harness.figures import AT_MOST, MIB, Figure
from bench.harness.memory_watch import MemoryWatch, card_used, uses
from bench.programs.memory_steps import CONTEXT, ON_THE_CARD, STEPS
from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.planes.process.region import Region, Use

AMPLE = 100 << 30
RELATIVE, ABSOLUTE = 0.02, 2 * MIB
_SETTLE_S = 0.05
"""NVML tells what the driver has done; the driver gives some memory back a little late."""


def measure() -> list[Figure]:
    """One process takes memory in each way and gives it back; both differences count, and the context stays."""
    driver = choose_driver()
    seen: dict[str, dict[str, Any]] = {}
    told: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    failed: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(nvml.session(driver))
        _, region, environment = stack.enter_context(library.shared_region())
        region.set_memory(AMPLE)
        child = stack.enter_context(Child(python("bench.programs.memory_steps"), environment))
        watch = MemoryWatch([child.pid], region)
        for name in STEPS:
            on_card = name in ON_THE_CARD
            if on_card and driver.name == "emulated":
                missing[name] = "the emulated GPU keeps this in host memory"
                continue
            look = partial(Looks, region, child.pid, card_used if on_card else watch.processes)
            before = look()
            try:
                if on_card:
                    told |= taken(child.ask_json, look, f"{name}, first use", name, before)
                seen |= taken(child.ask_json, look, name, name, before)
            except MissingError as error:
                missing[name] = str(error)
            except RuntimeError as error:
                failed[name] = str(error)
        held = watch.processes()
        charged = watch.region()
    worst = max(seen, key=lambda name: float(seen[name]["of what is allowed"]))
    details = {"MiB": seen, "told, MiB": told, "at the end": {"driver": held / MIB, "accounted": charged / MIB}}
    ways = len(STEPS) - len(missing) - len(failed)
    return [
        Figure(f"accounted against the driver, {ways} ways: off by, in parts of 2 % or 2 MiB, worst",
               seen[worst]["of what is allowed"], AT_MOST, 1, details={"worst": worst, **details}),
        Figure("accounted against the driver, all of the process: off by", abs(held - charged) / MIB, AT_MOST, 2,
               "MiB"),
        Figure("ways to take memory that failed", len(failed), AT_MOST, 0, details=failed),
        Figure("ways to take memory that were not to be had here", len(missing), details=missing),
    ]  # fmt: skip


class Looks:
    """What a process holds at a moment: accounted by the library, and told by the driver; bytes."""

    def __init__(self, region: Region, pid: int, told: Callable[[], int]) -> None:
        time.sleep(_SETTLE_S)
        use = uses(region).get(pid, Use(0, 0))
        self.held, self.overhead = use.held, use.overhead
        self.told = told()

    @property
    def accounted(self) -> int:
        """The program's own and the driver's for it."""
        return self.held + self.overhead


class MissingError(Exception):
    """The driver has no such function."""


def taken(
    ask: Callable[[str], Mapping[str, Any]], look: Callable[[], Looks], name: str, step: str, before: Looks
) -> dict[str, dict[str, Any]]:
    """Take memory by a step and give it back, but for the context; each time, by `name`, what differs from `before`.

    Raises MissingError where the driver cannot, and RuntimeError when it failed.
    """
    if why := ask(step).get("missing"):
        raise MissingError(why)
    found = {name: compared(before, look())}
    if step != CONTEXT:
        ask("undo")
        found[f"{name}, given back"] = compared(before, look())
    return found


def allowed(told: int) -> float:
    """By how much what is accounted may differ from `told`, bytes."""
    return max(RELATIVE * abs(told), ABSOLUTE)


def compared(before: Looks, after: Looks) -> dict[str, Any]:
    """What changed between two looks, in MiB, and by which part of what is allowed it is off."""
    told, accounted = after.told - before.told, after.accounted - before.accounted
    return {
        "driver": told / MIB,
        "accounted": accounted / MIB,
        "of it overhead": (after.overhead - before.overhead) / MIB,
        "of what is allowed": round(abs(accounted - told) / allowed(told), 4),
    }
