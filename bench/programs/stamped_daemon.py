"""A daemon that writes down when it suspended what: `python -m bench.programs.stamped_daemon FILE WAY WORDS…`.

WAY is `actuator`, or `loop` for a daemon that never finds one. At the daemon's end FILE has one line for each control,
by whomever it was sent: when it began and when it ended, in seconds of the monotonic clock.
"""

from __future__ import annotations

import sys
import time

from runlist.daemon import __main__ as daemon
from runlist.daemon.actuator import link, messages
from runlist.planes.nvidia.context import GpuContext
from runlist.protocol.actuator_autogen import Kind


def _stamp(stamps: list[tuple[float, float]]) -> None:
    suspend, said = GpuContext.suspend, messages.said

    def stamped_suspend(context: GpuContext) -> None:
        began = time.monotonic()
        suspend(context)
        stamps.append((began, time.monotonic()))

    def stamped_said(message: bytes) -> messages.Said:
        heard = said(message)
        if heard.kind is Kind.FIRED:
            stamps.extend((result.began, result.ended) for result in heard.results if result.done)
        return heard

    GpuContext.suspend = stamped_suspend  # type: ignore[assignment, method-assign]
    messages.said = stamped_said


def _nothing(name: str) -> None:
    raise FileNotFoundError(f"no {name} in this measurement")


def main() -> int:
    """Run the daemon; returns its exit code."""
    file, way, sys.argv[1:] = sys.argv[1], sys.argv[2], sys.argv[3:]
    stamps: list[tuple[float, float]] = []
    _stamp(stamps)
    if way == "loop":
        link.program = _nothing  # type: ignore[assignment, attr-defined]
    try:
        return daemon.main()
    finally:
        with open(file, "w", encoding="utf-8") as out:
            out.writelines(f"{began!r} {ended!r}\n" for began, ended in stamps)


if __name__ == "__main__":
    sys.exit(main())
