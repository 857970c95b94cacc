"""Finding policies: the built-in ones by name, a user's own by path.

What runs is a stack: the layers slo, cap and deadline, always, over one policy that shares out the rest. Each layer
does nothing until a task asks for it. A name chooses the policy at the bottom; the name of a layer chooses its options.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from runlist.plugins import Plugins
from runlist.policies.interface import Layer, Policy

DEFAULT_POLICY = "priority"

LAYERS = ("slo", "cap", "deadline")
"""From the top down: a service target sets caps, and a cap takes tasks out of every contest below."""

_POLICIES = Plugins(
    what="policy",
    package="runlist.policies",
    base=Policy,  # type: ignore[type-abstract]  # nobody makes one of it
    base_name="runlist.policies.Policy",
    others=frozenset({"parts"}),
    packages=True,
)


class PolicySpec(msgspec.Struct, frozen=True):
    """A policy by name (or path of a .py file) with the user's options."""

    name: str = DEFAULT_POLICY
    options: Mapping[str, str] = {}


def builtin_policies() -> dict[str, str]:
    """Names and one-line summaries of the policies that come with Runlist."""
    return {name: _POLICIES.ours(name).summary for name in _POLICIES.names()}


def look_at_policy(spec: PolicySpec) -> None:
    """Read the policy's file, if it is one: a file system may take its time. Raises as `load_policy`."""
    _POLICIES.look_at(spec.name)


def load_policy(spec: PolicySpec) -> Policy:
    """A new stack. Raises UsageError, which says what is wrong, for anything that is not a working policy,
    and NoPermissionError for a file that somebody else can write.
    """
    bottom = DEFAULT_POLICY if spec.name in LAYERS else spec.name
    cls = _POLICIES.find(bottom)
    with _POLICIES.making(spec.name):
        policy = cls(spec.options if bottom == spec.name else {})
        for name in reversed(LAYERS):
            layer = _POLICIES.ours(name)
            assert issubclass(layer, Layer)
            policy = layer(spec.options if name == spec.name else {}, policy)
        return policy
