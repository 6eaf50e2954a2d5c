"""vLLM's own metrics as text, and its count of sampled tokens for the contract's metrics."""

from collections.abc import Callable

from prometheus_client import generate_latest
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.prometheus import get_prometheus_registry
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from inference_adapters.totals import Totals


def metrics_text() -> str:
    """Returns the metrics of vLLM and of this Python process, in Prometheus' text format."""
    return generate_latest(get_prometheus_registry()).decode()


def count_tokens(totals: Totals) -> Callable[[VllmConfig, int], StatLoggerBase]:
    """Returns a factory of loggers for vLLM's statistics. Each logger counts sampled tokens."""
    return lambda config, engine: _TokenCounter(totals)


class _TokenCounter(StatLoggerBase):
    """Counts the tokens of each vLLM step, also for requests that do not stream or are cancelled."""

    def __init__(self, totals: Totals):
        self.totals = totals

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        *others: object,
        **more: object,
    ) -> None:
        if iteration_stats is not None:
            self.totals.sampled_tokens += iteration_stats.num_generation_tokens

    def log_engine_initialized(self) -> None: ...
