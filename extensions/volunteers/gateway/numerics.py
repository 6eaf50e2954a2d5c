"""The tolerances of the audit, which depend on the dtypes that volunteers and gateway compute with."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from contracts.support.files import write_atomically

CALIBRATION = "calibration.json"  # in the state directory; `--observe` writes it
EXACT = 1e-6  # a smaller gap is rounding of float32


class Activations(NamedTuple):
    """How far a task's commitments are from the audit's rows.

    exponents: share of points whose exponents differ, on the mean of its chunks. chunk: of a single one.
    mantissa: mean difference of the others' mantissas.
    """

    exponents: float
    chunk: float
    mantissa: float


@dataclass(frozen=True)
class Numerics:
    """The tolerances.

    tolerance: largest gap between a draw and its token. most: a larger gap slashes; one between the two is a
    strike, unless a long completion has few. greedy: nats by which a greedy token may be less likely than the
    best one. gap_rate: share of honest tokens whose gap is above the tolerance. near_rate: share of honest
    tokens with a gap above `EXACT`. logprob: largest mean difference of a completion's log-probabilities, in
    nats. activations: of commitments; None if they were not measured.
    """

    tolerance: float
    most: float
    greedy: float
    gap_rate: float
    near_rate: float
    logprob: float
    activations: Activations | None = None


FLOAT32 = Numerics(tolerance=1e-5, most=1e-5, greedy=1e-3, gap_rate=0.0, near_rate=1e-4, logprob=1e-3)
HALF = Numerics(tolerance=0.05, most=0.25, greedy=0.25, gap_rate=0.0, near_rate=0.03, logprob=0.1)
SMALLEST = Activations(0.02, 0.125, 0.125)  # a tolerance is at least that
LARGEST = {  # tolerances that honest volunteers may need
    FLOAT32: Numerics(
        tolerance=1e-4,
        most=1e-4,
        greedy=1e-2,
        gap_rate=0.0,
        near_rate=0.01,
        logprob=1e-2,
        activations=Activations(0.02, 0.125, 0.25),
    ),
    HALF: Numerics(
        tolerance=0.05,
        most=0.25,
        greedy=1.0,
        gap_rate=0.01,
        near_rate=0.3,
        logprob=0.5,
        activations=Activations(0.2, 0.4, 5.0),
    ),
}


def numerics_of(volunteers: str, audit: str, directory: Path) -> Numerics:
    """Returns the tolerances for two dtypes: measured ones if the state directory has some, else defaults."""
    default = FLOAT32 if volunteers == audit == "float32" else HALF
    path = directory / CALIBRATION
    if not path.is_file():
        return default
    try:
        written = json.loads(path.read_text())
        dtypes = written.pop("dtypes")
        activations = written.pop("activations", None)
        measured = Numerics(**written, activations=activations and Activations(**activations))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is no calibration: {error!r}; remove it, or let --observe write it"
        ) from None
    if dtypes != [volunteers, audit]:
        raise ValueError(f"{path} is of {' and '.join(dtypes)}, not of {volunteers} and {audit}: remove it")
    return measured


def implausible(measured: Numerics, default: Numerics) -> str | None:
    """Returns which measured tolerance honest volunteers do not need, or None. default: FLOAT32 or HALF."""
    values = _flat(measured)
    return next((name for name, most in _flat(LARGEST[default]).items() if not values[name] <= most), None)


def _flat(numerics: Numerics) -> dict[str, float]:
    fields = asdict(numerics)
    fields.pop("activations")
    return fields | (numerics.activations or Activations(0.0, 0.0, 0.0))._asdict()


def write_calibration(directory: Path, volunteers: str, audit: str, measured: Numerics) -> None:
    activations = measured.activations and measured.activations._asdict()
    fields = {"dtypes": [volunteers, audit], **asdict(measured), "activations": activations}
    text = json.dumps(fields, indent=2)
    write_atomically(directory / CALIBRATION, text.encode() + b"\n", 0o600)
