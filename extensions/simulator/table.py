"""Formats simulated runs as a table."""

import numpy as np

from extensions.simulator.measures import Measures
from extensions.simulator.trainer import Doing
from pipelinerl.config import RunConfig

COLUMNS = (
    "schedule",
    "s a step",
    "trained tokens/s",
    "places taken",
    "trainer waits",
    "lag mean (max)",
    "groups dropped as stale",
    "mean length trained / sampled",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def row_of(config: RunConfig, found: Measures) -> str:
    """Returns the table row of one run."""
    waits = found.trainer[Doing.WAITING] + found.trainer[Doing.QUIESCING]
    cells = (
        config.schedule_name,
        f"{found.seconds / config.max_steps:.2f}",
        f"{found.trained_tokens_per_s:.0f}",
        f"{found.occupied:.0%}",
        f"{waits:.0%}",
        f"{found.lag_mean:.2f} ({max(found.lags, default=0)})",
        f"{found.drops['stale'] / len(found.groups):.1%}",
        f"{np.mean(found.trained_lengths) / np.mean(found.sampled_lengths):.3f}",
    )
    return f"| {' | '.join(cells)} |"
