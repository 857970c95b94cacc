"""Everything goes at once: streams with priorities, or MPS as it is."""

from __future__ import annotations

from runlist.operations.admission import OPEN, Admission
from runlist.operations.rules.interface import Model, Rule


class Greedy(Rule):
    """One admission, always."""

    summary = "everything goes at once"

    def admission(self, model: Model) -> Admission:
        del model
        return OPEN


RULE = Greedy
