"""The settings in the environment of `runlist run`, under our names and under HAMi-core's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from runlist.planes.process import preload
from runlist.protocol import environment_autogen as names
from runlist.settings.values import memory
from runlist.units import parse_number, parse_size

_NO_CAP = {"", "0", "max", "none"}


def defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings that the environment asks for, under our names and HAMi's. Ours win."""
    settings = {
        **_hami(environment),
        **{key: environment[name] for name, key in names.OWN_SETTINGS.items() if environment.get(name)},
    }
    if environment.get(names.REGION):
        settings.pop("memory", None)  # the region has it already
    if parse_size(settings.get("memory", "")) == 0:
        settings["memory"] = "max"  # as the library takes it, and HAMi's
    if math.isinf(_percent(settings.get("cap", "max"))):
        settings.pop("cap", None)
    return settings


def made_one(environment: Mapping[str, str], taken: Mapping[str, str]) -> list[str]:
    """Notes on settings that were `taken` for every GPU although the environment has several for single ones."""
    return [
        f"{name}_N: on every GPU the smallest counts under `runlist run`: {key}={taken[key]}"
        for name, key in names.HAMI_SETTINGS.items()
        if taken.get(key) in (values := _values(environment, name)) and len(set(values)) > 1
    ]


def _values(environment: Mapping[str, str], name: str) -> list[str]:
    """Of one of HAMi's variables, for all GPUs and for single ones."""
    pattern = re.compile(f"{name}(_[0-9]+)?")
    return [value for each, value in environment.items() if value and pattern.fullmatch(each)]


def _hami(environment: Mapping[str, str]) -> dict[str, str]:
    if preload.is_on(environment.get(names.HAMI_DISABLE, "")):
        return {}
    found = {  # our limits are the same on every GPU: the smallest, so that none has more than was meant
        key: min(values, key=_AMOUNTS[key])
        for name, key in names.HAMI_SETTINGS.items()
        if (values := _values(environment, name))
    }
    if environment.get(names.HAMI_CAP_POLICY, "").lower() == names.CAP_POLICY_OFF:
        found.pop("cap", None)
    if environment.get(names.HAMI_PRIORITY) == names.HAMI_BATCH:
        found["class"] = "batch"
    return found


def _bytes(text: str) -> float:
    """For comparing. A malformed text comes first, so that the daemon refuses it."""
    if parse_size(text) == 0:
        return math.inf
    try:
        return memory(text).limit or math.inf
    except ValueError:
        return -1


def _percent(text: str) -> float:
    """For comparing, likewise; no cap comes last."""
    number = text.strip().removesuffix("%").strip()
    if number.lower() in _NO_CAP:
        return math.inf
    percent = parse_number(number)
    if percent is None:
        return -1
    return percent if 0 < percent < 100 else math.inf


_AMOUNTS = {"memory": _bytes, "cap": _percent}
