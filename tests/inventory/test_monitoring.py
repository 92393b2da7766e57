"""What ops/ and docs/operations.md ask of Prometheus is what /metrics serves: every name, every label, every value.

No Prometheus and no Grafana are at hand: that they load these files is not tested here.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any, get_args

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from contract.lifecycle import JobState, Reason
from service.api import shapes
from service.counts import Counts
from service.prometheus import Meters
from tests.support.processes import REPOSITORY

OPS = REPOSITORY / "ops"
PAGE = (REPOSITORY / "docs/operations.md").read_text()
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((OPS / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
BOARD: dict[str, Any] = json.loads((OPS / "grafana.json").read_text())
TABLE = PAGE.partition("| question | PromQL |")[2].partition("\n\n")[0]
ASKED = {
    **{f"alert {rule['alert']}": rule["expr"] for rule in RULES},
    **{f"panel {at['title']} {one['refId']}": one["expr"] for at in BOARD["panels"] for one in at.get("targets", [])},
    **{f"page {text}": text.replace("\\|", "|") for text in re.findall(r"`([^`]*footplate[^`]*)`", TABLE)},
}  # fmt: skip
NAME = re.compile(r"\b(footplate_\w+|up)\b(?:\{([^}]*)\})?")


@pytest.fixture(scope="module")
def served() -> dict[str, dict[str, set[str]]]:
    """Of every name its labels, and the values that each may have."""
    meters = Meters()
    meters.answered("GET", "/jobs", 200, 0.1)
    states, reasons = dict.fromkeys(JobState, 1), dict.fromkeys(Reason, 1)
    nodes = dict.fromkeys(get_args(shapes.Node.model_fields["state"].annotation), 1)
    text = meters.render(states, reasons, nodes, 1, Counts().numbers()).decode()
    found: dict[str, dict[str, set[str]]] = {"up": {"job": {"footplate"}}}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, defaultdict(set))
            for name, value in sample.labels.items():
                labels[name].add(value)
    return found


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_every_name_label_and_value_is_one_that_is_served(asked: str, served: dict[str, dict[str, set[str]]]) -> None:
    names = NAME.findall(asked)
    assert names
    for name, braces in names:
        assert name in served, f"/metrics has no {name}"
        for label, operator, value in re.findall(r'(\w+)\s*(=~|=)\s*"([^"]*)"', braces):
            assert label in served[name], f"{name} has no label {label!r}"
            if label in ("state", "reason", "job"):
                assert set(value.split("|") if operator == "=~" else [value]) <= served[name][label]
    for listed in re.findall(r"\bby \(([^)]*)\)", asked):
        assert all(set(listed.split(", ")) <= set(served[name]) for name, _ in names)


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_what_only_grows_is_asked_for_its_growth_and_nothing_else_is(asked: str) -> None:
    grown = {name for name, _ in re.findall(r"\b(?:rate|increase)\((footplate_\w+)(\{[^}]*\})?\[", asked)}
    growing = {name for name, _ in NAME.findall(asked) if name.endswith(("_total", "_bucket"))}
    # absent() asks whether there is one at all.
    whole = set(re.findall(r"\babsent\((footplate_\w+)\)", asked))

    assert growing - grown <= whole
    assert grown <= growing
    assert asked.count("(") == asked.count(")")
    assert asked.count("{") == asked.count("}")


def test_every_alert_says_how_urgent_it_is_and_what_it_means() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) > 10
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"].endswith(".")


def test_every_alert_that_the_page_recommends_is_a_rule() -> None:
    told = PAGE.partition("| alert | when |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(footplate_[a-z_]+)`", told))

    assert named
    assert named <= {name for rule in RULES for name, _ in NAME.findall(rule["expr"])}


def test_prometheus_is_told_of_the_rules_and_where_to_scrape() -> None:
    told = yaml.safe_load((OPS / "prometheus.yml").read_text())

    assert [(OPS / name).exists() for name in told["rule_files"]] == [True]
    assert [job["job_name"] for job in told["scrape_configs"]] == ["footplate"]


def test_the_dashboard_asks_whatever_prometheus_its_reader_chooses_and_no_panel_covers_another() -> None:
    [variable] = BOARD["templating"]["list"]
    panels = BOARD["panels"]
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    assert {each["datasource"]["uid"] for each in panels if "datasource" in each} == {f"${{{variable['name']}}}"}
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) == 23
    assert len({panel["id"] for panel in panels}) == len(panels)
