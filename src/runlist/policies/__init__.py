"""Scheduling policies: small plug-ins that see only `runlist.model`.

A policy is a class with the interface of `interface.Policy`, in `policies/<name>/__init__.py` or in a user's own file,
under the name `POLICY`. `loader` finds it.
"""

from runlist.policies.interface import Decision, Policy
from runlist.policies.loader import DEFAULT_POLICY, PolicySpec, builtin_policies, load_policy

__all__ = ["DEFAULT_POLICY", "Decision", "Policy", "PolicySpec", "builtin_policies", "load_policy"]
