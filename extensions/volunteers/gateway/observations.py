"""What honest volunteers differ by from the audit: `--observe` measures it, and writes the tolerances.

An operator runs it with volunteers of his own on the hardware that he expects, before strangers join.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from extensions.volunteers.gateway.checks import measured_activations
from extensions.volunteers.gateway.numerics import (
    EXACT,
    FLOAT32,
    HALF,
    SMALLEST,
    Activations,
    Numerics,
    implausible,
    write_calibration,
)
from extensions.volunteers.gateway.prefill import Prefilled
from extensions.volunteers.gateway.queue import Wanted
from extensions.volunteers.messages import Made

log = logging.getLogger(__name__)

EVERY = 500  # completions after which the tolerances are written
MARGIN = 3  # events that may happen unseen where none was seen, at 95 %


def _with_margin(most: Activations) -> Activations:
    return Activations(*(max(least, 2 * each) for least, each in zip(SMALLEST, most, strict=True)))


class Observations:
    """Counts gaps and differences of log-probabilities. dtypes: of volunteers and audit."""

    def __init__(self, directory: Path, dtypes: tuple[str, str]):
        self._directory = directory
        self._dtypes = dtypes
        self._default = FLOAT32 if set(dtypes) == {"float32"} else HALF
        self._tokens = self._near = self._above = self._completions = 0
        self._gap = self._difference = self._greedy = 0.0  # the largest ones
        self._activations: Activations | None = None

    def add(
        self,
        members: Sequence[Wanted],
        gaps: Sequence[np.ndarray],
        made: Sequence[Made],
        found: Sequence[Prefilled],
    ) -> None:
        """Adds a task. It is called in the thread of the audit."""
        for wanted, gap, one, each in zip(members, gaps, made, found, strict=True):
            self._difference = max(self._difference, float(np.abs(one.logprobs - each.logprobs).mean()))
            if wanted.sampling.temperature == 0:
                self._greedy = max(self._greedy, float((each.best - each.logprobs).max()))
                continue
            self._tokens += len(gap)
            self._near += int((gap > EXACT).sum())
            self._above += int((gap > self._default.tolerance).sum())
            self._gap = max(self._gap, float(gap.max()))
        if apart := measured_activations(found):
            most = self._activations or apart
            self._activations = Activations(*map(max, most, apart))
        before = self._completions // EVERY
        self._completions += len(made)
        if self._completions // EVERY > before:
            self._write()

    def measured(self) -> Numerics:
        """Returns tolerances with a margin. Honest volunteers stay within them."""
        tokens = max(1, self._tokens)
        default = self._default
        exact = default.tolerance == default.most  # float32: what is measured is the tolerance
        tolerance = max(default.tolerance, 2 * self._gap) if exact else default.tolerance
        return replace(
            default,
            tolerance=tolerance,
            most=tolerance if exact else default.most,
            greedy=max(default.greedy, 2 * self._greedy),
            gap_rate=0.0 if exact else (self._above + MARGIN) / tokens,
            near_rate=min(0.5, (self._near + MARGIN) / tokens),
            logprob=max(default.logprob, 2 * self._difference),
            activations=self._activations and _with_margin(self._activations),
        )

    def _write(self) -> None:
        measured = self.measured()
        if name := implausible(measured, self._default):
            log.error("not written: %s is not that of honest volunteers: %s", name, measured)
            return
        write_calibration(self._directory, *self._dtypes, measured)
        log.warning(
            "observed %d completions: %d of %d tokens with a gap above %g, the largest %.2g; "
            "log-probabilities off by up to %.2g, greedy tokens by %.2g; written: %s",
            self._completions,
            self._near,
            self._tokens,
            EXACT,
            self._gap,
            self._difference,
            self._greedy,
            measured,
        )
