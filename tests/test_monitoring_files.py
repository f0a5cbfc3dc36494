"""The dashboard and the alert rules ask for metrics that there are, by the tags that these have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

DOCS = Path(__file__).parents[1] / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "monitoring" / "grafana-dashboard.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((DOCS / "monitoring" / "prometheus-alerts.yaml").read_text())
# | `pgetl.lag_bytes`, `pgetl.lag_seconds` | gauges | `pipeline` |
ROWS = re.findall(r"^\| (`pgetl\..*?) \| (\w+) \| (.*?) \|$", (DOCS / "how-to" / "monitoring.md").read_text(), re.M)
METRICS = {
    name: (kind.rstrip("s"), set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", tags))))
    for names, kind, tags in ROWS
    for name in re.findall(r"`pgetl\.(\w+)`", names)
}
PANELS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
RULES = [(rule["alert"], rule["expr"]) for group in ALERTS["groups"] for rule in group["rules"]]
ASKED = re.compile(r'airflow_pgetl_([a-z_]+?)(\(_total\)\?)?(?=["{\[) ]|$)')


@pytest.mark.parametrize(("name", "expression"), PANELS + RULES)
def test_what_is_asked_for_exists(name: str, expression: str) -> None:
    asked = ASKED.findall(expression)
    assert asked, name
    for metric, total in asked:
        kind, tags = METRICS[metric]
        assert (kind == "counter") == bool(total), "a counter's name depends on the exporter"
        by = re.findall(r"by \(([\w, ]+)\)", expression)
        assert {tag for tags in by for tag in tags.split(", ")} <= tags


def test_a_metric_is_not_forgotten() -> None:
    shown = {metric for _, expression in PANELS for metric, _ in ASKED.findall(expression)}
    assert METRICS.keys() - shown == {"copied_bytes"}, "shown as rows"


def test_rules_say_what_is_wrong_and_what_it_means() -> None:
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"].keys() == {"summary", "description"}
            assert rule["labels"]["severity"] in ("warning", "critical")
