"""Finding policies: the built-in ones by name, a user's own by path."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runlist.errors import UsageError
from runlist.policies.interface import Policy

DEFAULT_POLICY = "priority"


@dataclass(frozen=True)
class PolicySpec:
    """A policy by name (or path of a .py file) with the user's options."""

    name: str = DEFAULT_POLICY
    options: Mapping[str, str] = field(default_factory=dict)


def builtin_policies() -> dict[str, str]:
    """Names and one-line summaries of the policies that come with Runlist."""
    package = importlib.import_module("runlist.policies")
    names = [module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg]
    return {
        name: _policy_class(importlib.import_module(f"runlist.policies.{name}"), name).summary for name in sorted(names)
    }


def load_policy(spec: PolicySpec) -> Policy:
    """A new instance. Raises UsageError, with what is wrong, for anything that is not a working policy."""
    cls = _from_file(Path(spec.name)) if spec.name.endswith(".py") else _builtin(spec.name)
    try:
        return cls(spec.options)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"policy {spec.name}: {error}") from None


def _builtin(name: str) -> type[Policy]:
    known = builtin_policies()
    if name not in known:
        raise UsageError(f"no policy {name!r}: take {', '.join(known)} or the path of a .py file")
    return _policy_class(importlib.import_module(f"runlist.policies.{name}"), name)


def _from_file(path: Path) -> type[Policy]:
    spec = importlib.util.spec_from_file_location(f"runlist_user_policy_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"policy file {path} does not exist")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"policy file {path} cannot be loaded: {type(error).__name__}: {error}") from None
    return _policy_class(module, str(path))


def _policy_class(module: object, name: str) -> type[Policy]:
    cls = getattr(module, "POLICY", None)
    if not (isinstance(cls, type) and issubclass(cls, Policy)):
        raise UsageError(f"policy {name} does not define POLICY, a subclass of runlist.policies.Policy")
    return cls
