"""Readers of settings, of what they are made of, of the environment, and of the options of policies."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path

from runlist.cli import environment as cli_environment
from runlist.errors import UsageError
from runlist.policies.loader import PolicySpec, load_policy
from runlist.protocol import environment_autogen as names
from runlist.settings.table import apply_changes, parse_settings
from runlist.units import parse_duration_us, parse_size
from tests.fixtures.mutation import Texts
from tests.hostile.reader import Reader

SETTINGS = [
    b"class=batch;weight=300;cap=30", b"cap=20ms/100ms;burst=10ms", b"cap=30000 100000", b"cap=12.5%;burst=none",
    b"deadline=5ms/20ms;p99=5ms", b"deadline=none;group=one", b"memory=8G;timeslice=500us", b"memory=1.5 GiB",
    b"memory=max;timeslice=auto;interleave=high", b"p99=1.5ms;group=none;class=latency", b"memory=900MB;weight=1",
]  # fmt: skip
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-zµμ]*)")
_SIZES = {"": 1, "b": 1, **{f"{letter}{rest}": (1000 if rest == "b" else 1024) ** (power + 1)
          for power, letter in enumerate("kmgt") for rest in ("", "b", "i", "ib")}}  # fmt: skip
_TIMES = {"us": 1, "µs": 1, "μs": 1, "ms": 1000, "s": 1_000_000}


def amount(text: str, units: dict[str, int]) -> float:
    """What a number and a unit mean, computed in another way than the reader's."""
    match = _AMOUNT.fullmatch(text.strip())
    assert match, f"{text!r} was taken"
    unit = match[2] if match[2] in units else match[2].lower()
    assert unit in units, f"{text!r} was taken"
    return float(Fraction(match[1]) * units[unit])


def pairs(text: bytes) -> dict[str, str]:
    """`a=1;b=2`."""
    words = text.decode(errors="surrogateescape").split(";")
    return {key: value for key, equals, value in (word.partition("=") for word in words) if equals}


def settings(_: Path) -> Reader:
    def read(text: bytes) -> None:
        asked = pairs(text)
        if not asked:
            raise UsageError("no settings")
        changes = parse_settings(asked)
        assert len(changes) == len(asked)
        task = apply_changes(changes)
        if (size := asked.get("memory", "max").strip().lower()) not in ("max", "none"):
            limit = next(change.limit for change in changes if hasattr(change, "limit"))  # type: ignore[attr-defined]
            assert limit is None or abs(limit - amount(size, _SIZES)) <= 1
        if asked.get("p99", "none").strip().lower() != "none":
            assert task.target_p99_us == amount(asked["p99"], _TIMES)
        if "/" in (cap := asked.get("cap", "")):
            quota, _, period = cap.partition("/")
            assert task.cap is not None
            assert abs(task.cap.quota_us - amount(quota, _TIMES)) <= 1
            assert abs(task.cap.period_us - amount(period, _TIMES)) <= 1

    return Reader(
        Texts(SETTINGS, [b"class=", b"weight=", b"memory=", b"deadline=", b";", b"ms", b"GiB"], "settings"), read
    )


def amounts(_: Path) -> Reader:
    """Sizes and durations by themselves."""
    seeds = [b"8G", b"1.5GiB", b"900 MB", b"12345", b"0.5 TiB", b"5ms", b"1.5 s", b"500us", "20µs".encode(), b"7kb"]

    def read(raw: bytes) -> None:
        text = raw.decode(errors="surrogateescape")
        size, duration = parse_size(text), parse_duration_us(text)
        if size is None and duration is None:
            raise UsageError("neither")
        if size is not None:
            assert abs(size - amount(text, _SIZES)) <= 1
        if duration is not None:
            assert duration == amount(text, _TIMES)

    return Reader(Texts(seeds, [b"K", b"iB", b"B", b"s", b"m", "μs".encode()], "amounts"), read)


ENVIRONMENTS = [
    b"RUNLIST_MEMORY=8G;RUNLIST_CAP=30%;RUNLIST_STRICT=1",
    b"CUDA_DEVICE_MEMORY_LIMIT=3g;CUDA_DEVICE_MEMORY_LIMIT_0=1024m",
    b"CUDA_DEVICE_SM_LIMIT=50;CUDA_DEVICE_SM_LIMIT_1=100;GPU_CORE_UTILIZATION_POLICY=force",
    b"CUDA_TASK_PRIORITY=1;CUDA_DISABLE_CONTROL=false", b"RUNLIST_REGION=/x;RUNLIST_MEMORY=max;CUDA_DEVICE_SM_LIMIT=0",
]  # fmt: skip


def environment(_: Path) -> Reader:
    """What `runlist run` makes of it. What the library makes of it is in tests/native/test_sanitizers.py."""
    words = [b"CUDA_DEVICE_MEMORY_LIMIT_15=", b"CUDA_DEVICE_SM_LIMIT=", b"RUNLIST_CAP=", b"disable", b"RUNLIST_"]

    def read(text: bytes) -> None:
        variables = pairs(text)
        found = cli_environment.defaults(variables)
        cli_environment.made_one(variables, found)
        assert found.keys() <= {"memory", "cap", "class"}
        assert set(found.values()) <= {*variables.values(), "batch", "max"}
        for name, key in names.OWN_SETTINGS.items():
            if key in found and variables.get(name):
                none = parse_size(variables[name]) == 0
                assert found[key] == ("max" if key == "memory" and none else variables[name])
        if not found:
            raise UsageError("nothing is asked for")
        parse_settings(found)

    return Reader(Texts(ENVIRONMENTS, words, "environment"), read)


POLICIES = [
    b"policy=priority;quantum_ms=20", b"policy=priority;quantum_ms=1s", b"policy=fair", b"policy=gpreempt",
    b"policy=slo;step=0.05;backoff=0.5;headroom=0.2", b"policy=deadline;bound=0.5;max_segment_ms=500ms", b"policy=cap",
]  # fmt: skip


def policy_options(_: Path) -> Reader:
    def read(text: bytes) -> None:
        options = pairs(text)
        name = options.pop("policy", "priority")
        if name.endswith(".py"):  # a file is a program, not an input
            raise UsageError("a file")
        load_policy(PolicySpec(name, options))
        for value in options.values():
            assert value.strip().isascii() or "µ" in value or "μ" in value, value
            number = parse_duration_us(value, "ms")
            assert number is not None, value
            assert 0 <= number < math.inf, value

    return Reader(
        Texts(POLICIES, [b"quantum_ms=", b"step=", b"bound=", b"parts", b"interface", b";"], "policies"), read
    )
