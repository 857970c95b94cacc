"""What a process of a region says of its clients that are scheduled operation by operation. It can write anything:
numbers are bounded, what is no statement counts as none, and nothing else is concluded from it.
"""

from __future__ import annotations

import struct
import time

import msgspec

from runlist.planes.process.region.format import CLIENT, CLIENTS, OPERATIONS

KEPT_S = 5.0
"""What was written longer ago is nobody's word any more: its process stands still."""

LEAST_WINDOW_NS, LONGEST_WINDOW_NS = 10**7, 60 * 10**9
"""How long lately can be."""

MAX_COUNT = (1 << 63) - 1
MAX_SMS = 1 << 16

LONGEST_REST_NS = 10**9


class Rule(msgspec.Struct, frozen=True):
    """What the rule in force lets go beside client 0, as `struct rl_admission`; None stands for no bound."""

    beside: int
    sms: int
    copies: bool
    gate_ns: int | None
    ahead_ns: int | None = None
    rest_ns: int = 0


class Client(msgspec.Struct, frozen=True):
    """A client. `lately_` is of the window; `lately_wait_ns` the middle one of the newest waits in it, 0 for none;
    `lately_sm_ns` SMs times nanoseconds by the profiles of kernels.
    """

    index: int
    launched: int
    deferred: int
    opened: int
    queued: int
    oldest_ns: int
    lately_launched: int
    lately_deferred: int
    lately_wait_ns: int
    lately_sm_ns: int


class Operations(msgspec.Struct, frozen=True):
    """The clients of a process, with the rule in force; `sms` are the device's, 0 where that is not known."""

    window_ns: int
    sms: int
    rule: Rule
    clients: tuple[Client, ...]


def parse_operations(data: bytes, bits: int) -> Operations | None:
    """What these bytes of a region say of the clients whose bits are set; None where that is nothing."""
    written_ns, window_ns, gate_ns, beside, most_sms, copies, sms, ahead_ns, rest_ns = _NUMBERS.unpack_from(data)
    age_s = (time.time_ns() - written_ns) / 1e9
    if abs(age_s) > KEPT_S or not LEAST_WINDOW_NS <= window_ns <= LONGEST_WINDOW_NS:
        return None
    return Operations(
        window_ns,
        sms if sms <= MAX_SMS else 0,
        Rule(
            beside,
            most_sms,
            bool(copies),
            None if gate_ns > MAX_COUNT else gate_ns,
            ahead_ns if 0 < ahead_ns <= MAX_COUNT else None,
            rest_ns if rest_ns <= LONGEST_REST_NS else 0,
        ),
        tuple(_client(data, index) for index in range(CLIENTS) if bits >> index & 1),
    )


_NUMBERS = struct.Struct("<3Q4I2Q")
"""Of OPERATIONS, before its clients."""


def _client(data: bytes, index: int) -> Client:
    numbers = CLIENT.struct.unpack_from(data, OPERATIONS.offsets["clients"] + index * CLIENT.size)
    return Client(index, *(min(number, MAX_COUNT) for number in numbers))
