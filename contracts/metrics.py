"""The metrics that every server with the capability `metrics` reports, independent of its engine.

`GET /metrics` returns them in Prometheus' text format, and may return more. The adapters and the conformance
kit use this table.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One metric. Each `family` must be unique: OpenMetrics treats metrics of one family as one."""

    name: str  # the name in queries
    type: Literal["gauge", "counter"]
    help: str
    label: str | None = None
    always: tuple[str, ...] = ()  # label values that are reported from the start

    @property
    def family(self) -> str:
        """The name of the metric family: the metric's name without a counter's suffix."""
        return self.name.removesuffix("_total")


WEIGHT_VERSION = Metric("contract_weight_version", "gauge", "The weight version that samples.")
REQUESTS = Metric(
    "contract_requests",
    "gauge",
    "Completions that are generated (running) and that wait (waiting); each choice is one.",
    "state",
    ("running", "waiting"),
)
RESIDENT_BYTES = Metric(
    "contract_resident_bytes", "gauge", "Resident memory of the engine's processes, summed, in bytes."
)
UPDATES = Metric(
    "contract_weight_updates_total",
    "counter",
    "Weight updates that have ended, by their state.",
    "state",
    ("live", "failed"),
)
UPDATE_SECONDS = Metric(
    "contract_weight_update_seconds_total",
    "counter",
    "Seconds from the acceptance of a weight update to its end, over all updates.",
)
PAUSED_SECONDS = Metric(
    "contract_weight_update_paused_seconds_total",
    "counter",
    "Seconds for which generation stood still in a weight update, over all updates.",
)
SAMPLED_TOKENS = Metric("contract_sampled_tokens_total", "counter", "Tokens that were sampled.")
HTTP_REQUESTS = Metric(
    "contract_http_requests_total",
    "counter",
    "Requests for completions and scores, by the HTTP status of their answer; "
    "closed: the client left before it.",
    "status",
    ("200",),
)

METRICS = (
    WEIGHT_VERSION,
    REQUESTS,
    RESIDENT_BYTES,
    UPDATES,
    UPDATE_SECONDS,
    PAUSED_SECONDS,
    SAMPLED_TOKENS,
    HTTP_REQUESTS,
)
