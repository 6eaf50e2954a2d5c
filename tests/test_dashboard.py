"""The files for Prometheus and Grafana ask for what servers tell."""

import json
import re
from pathlib import Path

import pytest
import yaml

from contracts.metrics import METRICS

ROOT = Path(__file__).resolve().parent.parent
GRAFANA = ROOT / "examples" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboard.json").read_text())
PANELS = DASHBOARD["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
BY_NAME = {metric.name: metric for metric in METRICS}


def test_every_metric_is_shown_and_no_other():
    asked = {name for query in QUERIES for name in re.findall(r"([\w:]+)\{", query)}
    assert asked == BY_NAME.keys()
    words = {word for query in QUERIES for word in re.findall(r"\b(?:contract|vllm|sglang)[\w:]*", query)}
    assert words == BY_NAME.keys()
    variable = DASHBOARD["templating"]["list"][1]
    assert (
        variable["query"]["query"] == variable["definition"] == "label_values(contract_weight_version, job)"
    )


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_labels_that_its_metrics_have(query):
    for name, selector in re.findall(r"([\w:]+)\{([^}]*)\}", query):
        metric = BY_NAME[name]
        labels = dict(re.findall(r'(\w+)=~?"([^"]*)"', selector))
        assert labels.pop("job") == "$job"
        assert labels.keys() <= {metric.label}
        assert set(labels.values()) <= set(metric.always)
    grouped = set(re.findall(r"(?:by|without) \((\w+)\)", query))
    assert grouped <= {BY_NAME[name].label for name in re.findall(r"([\w:]+)\{", query)}
    assert query.count("(") == query.count(")")


def test_the_contract_lists_every_metric():
    page = (ROOT / "docs" / "contract-metrics.md").read_text()
    for metric in METRICS:
        written = f"`{metric.name}{{{metric.label}}}`" if metric.label else f"`{metric.name}`"
        assert f"| {written} | {metric.type} |" in page


def test_the_scrape_configuration_sends_the_token():
    (job,) = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())["scrape_configs"]
    assert job["authorization"] == {"credentials_file": "token"}
