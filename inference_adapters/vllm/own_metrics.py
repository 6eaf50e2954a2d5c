"""What vLLM counts: its own metrics as text, and the sampled tokens for those of the contract."""

from collections.abc import Callable

from prometheus_client import generate_latest
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.prometheus import get_prometheus_registry
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from inference_adapters.totals import Totals


def metrics_text() -> str:
    """Returns vLLM's metrics, and Python's of this process, in Prometheus' text format."""
    return generate_latest(get_prometheus_registry()).decode()


def count_tokens(totals: Totals) -> Callable[[VllmConfig, int], StatLoggerBase]:
    """Returns what vLLM makes a logger of its statistics with. The logger counts sampled tokens."""
    return lambda config, engine: _TokenCounter(totals)


class _TokenCounter(StatLoggerBase):
    """vLLM tells it of each step, also of requests that are answered whole, or cancelled."""

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
