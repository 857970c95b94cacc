"""The record of who had a simulated GPU: nothing is missing in it, and to look changes nothing."""

from __future__ import annotations

import runpy
from collections import Counter
from itertools import pairwise

import pytest

from runlist.policies import PolicySpec
from runlist.sim import load_trace, simulate
from runlist.sim.timeline import Doing, timeline
from runlist.sim.timing import SECOND
from tests.fixtures.daemon import ROOT

SECONDS = 2.0


@pytest.mark.parametrize("trace", ["service-and-batch", "token-loop", "eager-llm"])
@pytest.mark.parametrize("way", ["switch", "request", "slice"])
def test_the_spans_are_all_of_the_time_and_add_up(trace: str, way: str) -> None:
    policy = PolicySpec("priority", {"give_way": way})
    spans = timeline(load_trace(trace), policy, SECONDS)
    assert spans[0].begins == 0
    assert spans[-1].ends == SECONDS * SECOND
    assert all(first.ends == second.begins for first, second in pairwise(spans))
    assert all((first.tenant, first.doing) != (second.tenant, second.doing) for first, second in pairwise(spans))
    took: Counter[Doing] = Counter()
    held: Counter[str] = Counter()
    for span in spans:
        took[span.doing] += span.ends - span.begins
        held[span.tenant] += (span.ends - span.begins) * (span.doing is Doing.WORK)
    result = simulate(load_trace(trace), policy, seconds=SECONDS).result
    (gpu,) = result.gpus
    for doing, part in (
        (Doing.WORK, gpu.work + gpu.lost), (Doing.IDLE, gpu.idle), (Doing.SWITCH, gpu.gaps), (Doing.EMPTY, gpu.empty)
    ):  # fmt: skip
        assert took[doing] / SECOND / SECONDS == pytest.approx(part, abs=1e-6)
    for tenant in result.tenants:
        assert held[tenant.name] / SECOND / SECONDS == pytest.approx(tenant.share, abs=1e-6)


def test_a_later_part_is_the_end_of_the_whole() -> None:
    policy = PolicySpec("priority")
    whole = timeline(load_trace("token-loop"), policy, 1.0)
    part = timeline(load_trace("token-loop"), policy, 1.0, since=0.9)
    assert part == whole[-len(part) :]
    assert part[0].begins <= 0.9 * SECOND < part[0].ends


def test_the_pictures_show_each_way_where_it_is_meant_to_be() -> None:
    """By request no switch lies within a request of the second picture; by switch there is one at each of its steps."""
    tool = runpy.run_path(str(ROOT / "tools" / "make_timelines"))
    (picture,) = (one for one in tool["PICTURES"] if one.trace == "token-loop")
    switches = {}
    for way in tool["WAYS"]:
        spans = timeline(load_trace("token-loop"), PolicySpec("priority", {"give_way": way}), 3.4, since=3.0)
        begins = tool["_window"](spans, "tokens", picture) + round(picture.before_ms * 1e6)
        within = [span for span in spans if begins < span.begins < begins + 30e6]
        switches[way] = sum(span.doing is Doing.SWITCH for span in within)
    assert switches["request"] == 0
    assert switches["switch"] > 20
