"""Reads the metrics of a server as Prometheus does."""

import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.limits import HANG_S

Labels = frozenset[tuple[str, str]]


def told(url: str, token: str | None = None) -> str:
    """Returns the text of `/metrics`."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/metrics", headers=headers), timeout=HANG_S
    ) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return answer.read().decode()


def scraped(url: str, token: str | None = None) -> dict[str, dict[Labels, float]]:
    """Returns every sample by its name and its labels."""
    samples: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(told(url, token)):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return samples


def value(samples: dict[str, dict[Labels, float]], name: str, **labels: str) -> float:
    """Returns the sum of the samples that have these labels."""
    return sum(number for found, number in samples[name].items() if labels.items() <= dict(found).items())


def status_without_token(url: str) -> int:
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=HANG_S) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
