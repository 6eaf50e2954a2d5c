"""What honest volunteers differ by from the audit: `--observe` measures it, and writes the tolerances.

An operator runs it with volunteers of his own on the hardware that he expects, before strangers join.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from extensions.volunteers.gateway.numerics import EXACT, FLOAT32, HALF, Numerics, write_calibration
from extensions.volunteers.gateway.prefill import Prefilled
from extensions.volunteers.messages import Made

log = logging.getLogger(__name__)

EVERY = 500  # completions after which the tolerances are written
QUANTILES = (0.5, 0.99, 0.9999, 1.0)
MARGIN = 3  # events that may happen unseen where none was seen, at 95 %


class Observations:
    """Counts gaps and differences of log-probabilities. dtypes: of volunteers and audit."""

    def __init__(self, directory: Path, dtypes: tuple[str, str]):
        self._directory = directory
        self._dtypes = dtypes
        self._default = FLOAT32 if set(dtypes) == {"float32"} else HALF
        self._tokens = self._near = self._above = self._completions = 0
        self._gaps = np.zeros(0)  # those of near misses
        self._differences = np.zeros(0)  # means of completions, in nats

    def add(self, gaps: Sequence[np.ndarray], made: Sequence[Made], found: Sequence[Prefilled]) -> None:
        """Adds a task. It is called in the thread of the audit."""
        every = np.concatenate(gaps)
        pairs = zip(made, found, strict=True)
        differences = [np.abs(np.array(one.logprobs) - each.logprobs).mean() for one, each in pairs]
        self._tokens += len(every)
        self._near += int((every > EXACT).sum())
        self._above += int((every > self._default.tolerance).sum())
        self._gaps = np.append(self._gaps, every[every > EXACT])
        self._differences = np.append(self._differences, differences)
        before = self._completions // EVERY
        self._completions += len(made)
        if self._completions // EVERY > before:
            self._write()

    def measured(self) -> Numerics:
        """Returns tolerances with a margin. Honest volunteers stay within them."""
        near = (self._near + MARGIN) / self._tokens
        gap_rate = (self._above + MARGIN) / self._tokens if self._above else 0.0
        largest = float(self._gaps.max(initial=0.0))
        return replace(
            self._default,
            most=max(self._default.most, 2 * largest) if self._above else self._default.most,
            gap_rate=gap_rate,
            near_rate=min(0.5, near),
            logprob=max(self._default.logprob, 2 * float(self._differences.max(initial=0.0))),
        )

    def _write(self) -> None:
        measured = self.measured()
        write_calibration(self._directory, *self._dtypes, measured)
        quantiles = ", ".join(f"{each:.2g}" for each in np.quantile(self._differences, QUANTILES))
        log.warning(
            "observed %d completions: %d of %d tokens with a gap above %g, the largest %.2g; differences of "
            "log-probabilities (quantiles 0.5, 0.99, 0.9999, 1): %s; written: %s",
            self._completions,
            self._near,
            self._tokens,
            EXACT,
            self._gaps.max(initial=0.0),
            quantiles,
            measured,
        )
