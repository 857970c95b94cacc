"""Nothing goes while client 0 is busy: it has the GPU to itself, and the others have its pauses.

Options: `rest_us` is for how long client 0 counts as busy after its work has ended (default 100; 0: not at all), so
that nothing comes in between two launches of one request. `ahead_us` is how much of the others' work may be in flight
while it is idle, which it waits for when it comes (default 1000; `ahead_us=off`: any). It counts what profiles say, and
a kernel without one as others of its client took.
"""

from __future__ import annotations

from collections.abc import Mapping

from runlist.operations.admission import Admission
from runlist.operations.rules.bounds import BOUNDS, take_closed
from runlist.operations.rules.interface import Model, Rule
from runlist.policies.parts.options import no_more


class Exclusive(Rule):
    """One admission, always."""

    summary = "nothing goes until client 0 is idle (options ahead_us, rest_us)"

    def __init__(self, options: Mapping[str, str]) -> None:
        left = dict(options)
        self._closed = take_closed(left)
        no_more(left, *BOUNDS)

    def admission(self, model: Model) -> Admission:
        del model
        return self._closed


RULE = Exclusive
