"""Checks that /metrics has the names, labels and values that ops/ and docs/guides/monitor.md use.

A real Prometheus loads the rules, runs the queries and raises the alerts. No test loads the dashboard into Grafana.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from footplate.contract.lifecycle import JobState, Reason
from footplate.contract.resources.operations import NodeState
from service.counters import Counts
from service.prometheus_metrics import Meters
from tests.support.processes import REPOSITORY, Processes
from tests.support.prometheus import Prometheus, promtool
from tests.support.redis_server import RedisServer
from tests.support.system import System

OPS = REPOSITORY / "ops"
PAGE = (REPOSITORY / "docs/guides/monitor.md").read_text()
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((OPS / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
BOARD: dict[str, Any] = json.loads((OPS / "grafana.json").read_text())
TABLE = PAGE.partition("| question | PromQL |")[2].partition("\n\n")[0]
ASKED = {
    **{f"alert {rule['alert']}": rule["expr"] for rule in RULES},
    **{f"panel {at['title']} {ask['refId']}": ask["expr"] for at in BOARD["panels"] for ask in at.get("targets", [])},
    **{f"page {text}": text.replace("\\|", "|") for text in re.findall(r"`([^`]*footplate[^`]*)`", TABLE)},
}  # fmt: skip
NAME = re.compile(r"\b(footplate_\w+|up)\b(?:\{([^}]*)\})?")


@pytest.fixture(scope="module")
def served() -> dict[str, dict[str, set[str]]]:
    """Returns the labels of every metric, and the values that each label may have."""
    meters = Meters()
    meters.answered("GET", "/jobs", 200, 0.1)
    states, reasons = dict.fromkeys(JobState, 1), dict.fromkeys(Reason, 1)
    nodes = dict.fromkeys(get_args(NodeState), 1)
    text = meters.render(states, reasons, nodes, 1, Counts().numbers()).decode()
    result: dict[str, dict[str, set[str]]] = {"up": {"job": {"footplate"}}}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = result.setdefault(sample.name, defaultdict(set))
            for name, value in sample.labels.items():
                labels[name].add(value)
    return result


@pytest.mark.parametrize("query", ASKED.values(), ids=ASKED)
def test_every_metric_and_label_in_rules_and_dashboard_is_served(
    query: str, served: dict[str, dict[str, set[str]]]
) -> None:
    names = NAME.findall(query)
    assert names
    for name, braces in names:
        assert name in served, f"/metrics has no {name}"
        for label, operator, value in re.findall(r'(\w+)\s*(=~|=)\s*"([^"]*)"', braces):
            assert label in served[name], f"{name} has no label {label!r}"
            if label in ("state", "reason", "job"):
                assert set(value.split("|") if operator == "=~" else [value]) <= served[name][label]
    for labels in re.findall(r"\bby \(([^)]*)\)", query):
        assert all(set(labels.split(", ")) <= set(served[name]) for name, _ in names)


@pytest.mark.parametrize("query", ASKED.values(), ids=ASKED)
def test_counters_are_queried_by_rate_and_gauges_are_not(query: str) -> None:
    grown = {name for name, _ in re.findall(r"\b(?:rate|increase)\((footplate_\w+)(\{[^}]*\})?\[", query)}
    growing = {name for name, _ in NAME.findall(query) if name.endswith(("_total", "_bucket"))}
    # absent() asks if the series exists, so its counter needs no rate().
    whole = set(re.findall(r"\babsent\((footplate_\w+)\)", query))

    assert growing - grown <= whole
    assert grown <= growing
    assert query.count("(") == query.count(")")
    assert query.count("{") == query.count("}")


def test_every_alert_has_a_severity_and_a_description() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) > 10
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"].endswith(".")


def test_every_alert_that_the_page_recommends_is_a_rule() -> None:
    report = PAGE.partition("| alert | when |")[2].partition("\n\n")[0]
    metrics = set(re.findall(r"`(footplate_[a-z_]+)`", report))

    assert metrics
    assert metrics <= {name for rule in RULES for name, _ in NAME.findall(rule["expr"])}


def test_the_dashboard_uses_the_chosen_prometheus_and_no_panel_covers_another() -> None:
    [variable] = BOARD["templating"]["list"]
    panels = BOARD["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    assert {panel["datasource"]["uid"] for panel in panels if "datasource" in panel} == {f"${{{variable['name']}}}"}
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in panels}) == len(panels)


@dataclass(frozen=True)
class Case:
    """Series with one value per minute, in the notation of promtool.

    After the time `after`, the series of `alarm` raise the alert, and the series of `calm` do not.
    """

    after: str
    alarm: dict[str, str]
    calm: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)


CONTROL = "footplate_control_"
CASES = {
    "FootplateIsDown": Case(
        "5m",
        {'up{job="footplate"}': "0x9"},
        {'up{job="footplate", at="1"}': "0x9", 'up{job="footplate", at="2"}': "1x9"},
    ),
    "FootplateCannotServe": Case(
        "20m",
        {'footplate_requests_total{status="503"}': "0+10x30", 'footplate_requests_total{status="200"}': "0+90x30"},
        {'footplate_requests_total{status="503"}': "0+1x30", 'footplate_requests_total{status="404"}': "0+90x30"},
    ),
    # A single outage that is over raises no alert.
    "FootplateDatabaseIsUnreachable": Case(
        "16m", {f"{CONTROL}database_outages_total": "0+2x30"}, {f"{CONTROL}database_outages_total": "0x10 1x20"}
    ),
    "FootplateNoHeartbeats": Case("20m", {f"{CONTROL}beats_total": "7x30"}, {f"{CONTROL}beats_total": "0+12x30"}),
    "FootplateNoNodeTakesWork": Case(
        "15m",
        {"footplate_slots": "0x30", 'footplate_jobs{state="queued"}': "3x30"},
        {"footplate_slots": "0x30", 'footplate_jobs{state="queued"}': "0x30", 'footplate_jobs{state="failed"}': "9x30"},
    ),
    "FootplateNodeIsLost": Case(
        "15m", {'footplate_nodes{state="lost"}': "1x30"}, {'footplate_nodes{state="alive"}': "9x30"}
    ),
    "FootplateJobsAreLate": Case("5m", {f"{CONTROL}ingest_lag_ms": "11000x9"}, {f"{CONTROL}ingest_lag_ms": "900x9"}),
    "FootplateJournalsGrow": Case(
        "25m", {f"{CONTROL}journal_depth": "9000+500x30"}, {f"{CONTROL}journal_depth": "90000-500x30"}
    ),
    "FootplateMachineIsFailing": Case(
        "12m", {f"{CONTROL}attempts_lost_total": "0+1x30"}, {f"{CONTROL}attempts_lost_total": "0x5 2x30"}
    ),
    "FootplateJobsFailForOneReason": Case(
        "30m",
        {f'{CONTROL}jobs_failed_total{{reason="poison"}}': "0+1x60"},
        {f'{CONTROL}jobs_failed_total{{reason="error"}}': "0+9x60"},
        {"reason": "poison"},
    ),
    "FootplateDiskReturnsWrongData": Case(
        "10m", {f"{CONTROL}checkpoints_refused_total": "0x5 1x9"}, {f"{CONTROL}gaps_declared_total": "4x20"}
    ),
    "FootplateCheckpointsAreStuck": Case(
        "70m", {f"{CONTROL}checkpoints_stuck": "1x90"}, {f"{CONTROL}checkpoints_stuck": "1x50 0x40"}
    ),
    "FootplateMessagesAreUnreadable": Case(
        "10m", {f"{CONTROL}events_dead_total": "0x5 1x9"}, {f"{CONTROL}events_dead_total": "1x20"}
    ),
    "FootplateJobFitsNoNode": Case(
        "70m",
        {'footplate_jobs_waiting{reason="no_such_shape"}': "1x90"},
        {'footplate_jobs_waiting{reason="capacity"}': "1x90"},
    ),
    "FootplateIsFull": Case(
        "400m",
        {'footplate_jobs_waiting{reason="capacity"}': "1x500"},
        {'footplate_jobs_waiting{reason="capacity"}': "1x350 0x9 1x150"},
    ),
}  # fmt: skip


def test_every_alert_has_a_test_case_that_fires_and_one_that_does_not() -> None:
    assert CASES.keys() == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_fires_when_it_should_and_only_then(rule: dict[str, Any], tmp_path: Path) -> None:
    case = CASES[rule["alert"]]
    summary = rule["annotations"]["summary"].replace("{{ $labels.reason }}", case.labels.get("reason", ""))
    fired = {"exp_labels": {**rule["labels"], **case.labels}, "exp_annotations": {"summary": summary}}
    messages = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [{"eval_time": case.after, "alertname": rule["alert"], "exp_alerts": expected}],
        }
        for series, expected in [(case.alarm, [fired]), (case.calm, [])]
    ]
    file = tmp_path / "cases.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(OPS / "alerts.yml")], "tests": messages}))

    promtool("test", "rules", str(file))


def test_a_real_prometheus_accepts_the_files() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "config", str(OPS / "prometheus.yml"))


def test_a_real_prometheus_scrapes_a_real_service_and_answers_every_query(
    processes: Processes, redis: RedisServer, sqlite_url: str
) -> None:
    system = System(processes, redis, sqlite_url)
    system.start_service()
    prometheus = Prometheus(processes, OPS / "prometheus.yml", [system.url.removeprefix("http://")])

    def is_scraped() -> bool:
        return prometheus.value('up{job="footplate"}') == 1 and prometheus.value("max(footplate_slots)") == 0

    prometheus.process.until(is_scraped, within=60, what="the service was scraped")
    for query in ASKED.values():
        prometheus.ask("/query", query=query.replace("$__rate_interval", "1m"))

    def all_were_evaluated() -> bool:
        return {rule["health"] for group in prometheus.ask("/rules")["groups"] for rule in group["rules"]} == {"ok"}

    prometheus.process.until(all_were_evaluated, within=60, what="every alert was evaluated")
