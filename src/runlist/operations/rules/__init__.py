"""Rules of the scheduler of operations: small plug-ins that see a model only, and answer an `Admission`.

A rule is a class with the interface of `interface.Rule`, in `operations/rules/<name>.py` or in a user's own file, under
the name `RULE`. `loader` finds it.
"""

from runlist.operations.rules.interface import STALL_S, Model, Rule
from runlist.operations.rules.loader import DEFAULT_RULE, builtin_rules, load_rule

__all__ = ["DEFAULT_RULE", "STALL_S", "Model", "Rule", "builtin_rules", "load_rule"]
