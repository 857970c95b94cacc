"""Finding policies: the built-in ones by name, a user's own by path.

What runs is a stack: the layers slo, cap and deadline, always, over one policy that shares out the rest. Each layer
does nothing until a task asks for it. A name chooses the policy at the bottom; the name of a layer chooses its options.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runlist import plugin_file
from runlist.errors import UsageError
from runlist.policies.interface import Layer, Policy

DEFAULT_POLICY = "priority"

LAYERS = ("slo", "cap", "deadline")
"""From the top down: a service target sets caps, and a cap takes tasks out of every contest below."""

NOT_POLICIES = frozenset({"parts"})


@dataclass(frozen=True)
class PolicySpec:
    """A policy by name (or path of a .py file) with the user's options."""

    name: str = DEFAULT_POLICY
    options: Mapping[str, str] = field(default_factory=dict)


def builtin_policies() -> dict[str, str]:
    """Names and one-line summaries of the policies that come with Runlist."""
    package = importlib.import_module("runlist.policies")
    names = {module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg} - NOT_POLICIES
    return {name: _builtin(name).summary for name in sorted(names)}


def load_policy(spec: PolicySpec) -> Policy:
    """A new stack. Raises UsageError, which says what is wrong, for anything that is not a working policy,
    and NoPermissionError for a file that somebody else can write.
    """
    bottom = DEFAULT_POLICY if spec.name in LAYERS else spec.name
    cls = _from_file(Path(bottom)) if bottom.endswith(".py") else _builtin(bottom)
    try:
        policy = cls(spec.options if bottom == spec.name else {})
        for name in reversed(LAYERS):
            layer = _builtin(name)
            assert issubclass(layer, Layer)
            policy = layer(spec.options if name == spec.name else {}, policy)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        said = str(error) if isinstance(error, ValueError) else repr(error)
        raise UsageError(f"policy {spec.name}: {said}") from None
    return policy


def _builtin(name: str) -> type[Policy]:
    try:
        if not name.isidentifier() or name in NOT_POLICIES:
            raise ModuleNotFoundError(name=f"runlist.policies.{name}")
        module = importlib.import_module(f"runlist.policies.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"runlist.policies.{name}":
            raise
        known = ", ".join(builtin_policies())
        raise UsageError(f"no policy {name!r}: take {known} or the path of a .py file") from None
    return _policy_class(module, name)


def _from_file(path: Path) -> type[Policy]:
    return _policy_class(plugin_file.load(path, "policy"), str(path))


def _policy_class(module: object, name: str) -> type[Policy]:
    cls = getattr(module, "POLICY", None)
    if not (isinstance(cls, type) and issubclass(cls, Policy)):
        raise UsageError(f"policy {name} does not define POLICY, a subclass of runlist.policies.Policy")
    return cls
