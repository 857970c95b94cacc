"""Nothing goes while client 0 is busy: it has the GPU to itself, and the others have its pauses."""

from __future__ import annotations

from runlist.operations.admission import CLOSED, Admission
from runlist.operations.rules.interface import Model, Rule


class Exclusive(Rule):
    """One admission, always."""

    summary = "nothing goes until client 0 is idle"

    def admission(self, model: Model) -> Admission:
        del model
        return CLOSED


RULE = Exclusive
