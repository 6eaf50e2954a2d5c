"""What honest volunteers differ by from the audit: `--observe` measures it, and writes the tolerances.

An operator runs it with volunteers of his own on the hardware that he expects, before strangers join.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from contracts.commitments import Difference
from extensions.volunteers.gateway.checks import differences_of
from extensions.volunteers.gateway.numerics import (
    CALIBRATION,
    EXACT,
    Activations,
    Calibration,
    Numerics,
    are_implausible,
    default_of,
    implausible,
    write_calibration,
)
from extensions.volunteers.gateway.prefill import Prefilled
from extensions.volunteers.gateway.queue import Wanted
from extensions.volunteers.messages import Made

log = logging.getLogger(__name__)

EVERY = 500  # completions after which the tolerances are written
LEAST_EXPONENTS = 0.125  # tolerances of a chunk are at least these
LEAST_MANTISSA = 0.25
MARGIN = 3  # events that may happen unseen where none was seen, at 95 %


class Observations:
    """Counts gaps and differences. model: SHA-256 of its config.json. dtypes: of volunteers and audit.

    before: the tolerances in use, of which those that are not measured again stay.
    """

    def __init__(self, directory: Path, dtypes: tuple[str, str], model: str, before: Numerics):
        self._directory = directory
        self._dtypes = dtypes
        self._model = model
        self._before = before
        self._default = default_of(dtypes)
        log.warning("observing: after each %d completions, %s is written", EVERY, directory / CALIBRATION)
        self._tokens = self._near = self._above = self._completions = 0
        self._gap = self._difference = self._greedy = 0.0  # the largest ones
        self._chunks: list[Difference] = []

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
        self._chunks += differences_of(found)
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
            near_rate=max(default.near_rate, min(0.5, (self._near + MARGIN) / tokens) if self._near else 0.0),
            logprob=max(default.logprob, 2 * self._difference),
            activations=self._activations(),
        )

    def _activations(self) -> Activations | None:
        """Returns the tolerances of commitments, with a margin; those before if none were measured."""
        chunks = [each for each in self._chunks if math.isfinite(each.mantissa)]
        if not chunks:
            return self._before.activations
        exponents = [each.exponents for each in chunks]
        mantissas = [each.mantissa for each in chunks]
        measured = Activations(
            float(np.mean(exponents)),
            float(np.mean(mantissas)),
            max(LEAST_EXPONENTS, 2 * max(exponents)),
            max(LEAST_MANTISSA, 2 * max(mantissas)),
        )
        if are_implausible(measured, self._default):
            log.error(
                "commitments are not calibrated: these are not those of honest volunteers: %s", measured
            )
            return self._before.activations
        return measured

    def close(self) -> None:
        """Says how many completions were not written down, if there was no calibration."""
        if self._completions < EVERY:
            log.warning("observed %d of %d completions: nothing is written", self._completions, EVERY)

    def _write(self) -> None:
        measured = self.measured()
        if name := implausible(measured, self._default):
            log.error("not written: %s is not that of honest volunteers: %s", name, measured)
            return
        write_calibration(self._directory, Calibration(self._dtypes, self._model, measured))
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
