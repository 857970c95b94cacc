"""Scheduling policies: small plug-ins that see only `runlist.model`.

A policy is a class with the interface of `interface.Policy`, in `policies/<name>/__init__.py` or in a user's own file,
under the name `POLICY`. `loader` finds it; `parts` has the pieces that several of them share.
"""

from runlist.policies.interface import STALL_S, Decision, Layer, Policy
from runlist.policies.loader import DEFAULT_POLICY, LAYERS, PolicySpec, builtin_policies, load_policy, look_at_policy

__all__ = [
    "DEFAULT_POLICY",
    "LAYERS",
    "STALL_S",
    "Decision",
    "Layer",
    "Policy",
    "PolicySpec",
    "builtin_policies",
    "load_policy",
    "look_at_policy",
]
