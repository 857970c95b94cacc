"""The one-way flow of `native/`: which room includes which, as `test_layering` has it for Python."""

from __future__ import annotations

from pathlib import Path

from tests.layout.includes import circles, includes, rooms, units

NATIVE = Path(__file__).resolve().parents[2] / "native"

FLOW: dict[str, set[str]] = {
    "core": set(),
    "include": set(),
    "environment": set(),
    "region": {"core", "environment"},
    "resolve": {"core"},
    "tenant": {"core", "include"},
    "activity": {"core", "region"},
    "arrivals": {"activity", "core", "include", "region", "resolve", "tenant"},
    "rm": {"core", "region", "resolve"},
    "driver": set(),
    "cap": {"core", "driver", "region"},
    "operations": {"core", "driver", "include", "region"},
    "hooks": {"activity", "arrivals", "cap", "core", "driver", "environment", "operations", "region", "resolve", "rm"},
    "preload": {
        "activity",
        "arrivals",
        "cap",
        "core",
        "environment",
        "hooks",
        "operations",
        "region",
        "resolve",
        "rm",
        "tenant",
    },
    "actuator": {"core"},
    "kernel": set(),
    "checks": {"actuator", "cap", "core", "environment", "operations", "region", "rm"},
}
"""What each room includes besides itself, from the bottom to the top. `preload` puts the library together; `checks` are
programs."""

GRAPH = includes(NATIVE, NATIVE, NATIVE / "include")
ROOMS = rooms(GRAPH, NATIVE)


def test_a_room_includes_what_it_may_and_nothing_is_allowed_that_it_does_not_need() -> None:
    assert ROOMS == FLOW


def test_a_room_includes_only_those_below_it() -> None:
    order = list(FLOW)
    above = [
        f"{room} includes {other}, which stands above it"
        for room, included in FLOW.items()
        for other in sorted(included)
        if order.index(other) >= order.index(room)
    ]
    assert not above, "\n".join(above)


def test_no_files_include_one_another_in_a_circle() -> None:
    found = [sorted(str(unit.relative_to(NATIVE)) for unit in circle) for circle in circles(units(GRAPH))]
    assert found == []
