"""The generator of the kernel `accumulate_lcg` on the host, with jumps, so that any amount of work can be checked."""

from __future__ import annotations

from array import array

MULTIPLIER = 1664525
INCREMENT = 1013904223
MASK = 0xFFFFFFFF


def jump(rounds: int) -> tuple[int, int]:
    """(a, c) such that x * a + c (mod 2^32) is `rounds` steps of x * MULTIPLIER + INCREMENT. O(log rounds)."""
    a, c = 1, 0
    step_a, step_c = MULTIPLIER, INCREMENT
    while rounds:
        if rounds & 1:
            a, c = a * step_a & MASK, (c * step_a + step_c) & MASK
        step_a, step_c = step_a * step_a & MASK, (step_c * step_a + step_c) & MASK
        rounds >>= 1
    return a, c


def initial(count: int) -> array[int]:
    """`count` starting states (u32): 0, 1, 2, …"""
    return array("I", range(count))


def advanced(count: int, rounds: int) -> array[int]:
    """What `initial(count)` becomes after `rounds` rounds in all."""
    a, c = jump(rounds)
    return array("I", ((x * a + c) & MASK for x in range(count)))
