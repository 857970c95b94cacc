"""One operation, as the library's log has it."""

from __future__ import annotations

from dataclasses import dataclass

KERNEL = 0
"""Of `kind`: RL_KERNEL."""


@dataclass(frozen=True)
class Operation:
    """One of them: called by the program, given to the driver, done on the GPU. Client 0 is that of high priority."""

    client: int
    kind: int
    operation_class: int
    sms: int
    called_ns: int
    launched_ns: int
    done_ns: int
    name: str = ""
