"""The dashboard and the alerts that are shipped name what the exporter tells, and nothing else."""

from __future__ import annotations

import re

from runlist.integrations.exporter import names
from tests.fixtures.metrics import ALERTS, all_expressions, dashboard, of_alerts, of_dashboard, of_page

TOLD = {metric.name for metric in (*names.WORKLOAD_COUNTERS, *names.WORKLOAD_GAUGES, *names.GPUS, *names.DAEMON)} | {
    extra.name for extra in names.EXTRAS
}
LABELS = {*names.OWN_LABELS, "class", "instance", "job", "policy"}


def test_every_metric_that_they_name_is_told() -> None:
    expressions = all_expressions()
    assert len(list(of_alerts())) == ALERTS.read_text().count("- alert:") >= 8
    assert len(list(of_dashboard())) >= 15
    assert len(list(of_page())) == 6
    for expression in expressions:
        found = set(re.findall(r"\brunlist_\w+", expression))
        assert found <= TOLD, found - TOLD
        assert found or "up{" in expression


def test_every_label_that_they_name_is_there() -> None:
    for expression in all_expressions():
        for group in re.findall(r"(?:by|on|group_left) \(([^)]*)\)", expression):
            assert {name.strip() for name in group.split(",")} <= LABELS
        for matcher in re.findall(r"\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)(?:=~|!=|=)", matcher)) <= LABELS


def test_a_counter_is_never_shown_without_its_rate() -> None:
    for expression in all_expressions():
        bare = re.sub(r"(?:rate|increase)\((runlist_\w+_total)", "", expression)
        assert "_total" not in bare, expression


def test_the_dashboard_is_one() -> None:
    made = dashboard()
    ids = [panel["id"] for panel in made["panels"]]
    assert len(ids) == len(set(ids))
    variables = {variable["name"] for variable in made["templating"]["list"]}
    assert {"datasource", "instance", "gpu", "namespace"} == variables
    taken: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        place = panel["gridPos"]
        columns, lines = (range(place[at], place[at] + place[size]) for at, size in (("x", "w"), ("y", "h")))
        cells = {(x, y) for x in columns for y in lines}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
        if panel["type"] != "row":
            assert panel["targets"]
            assert panel["datasource"]["uid"] == "${datasource}"
