"""The tolerances of the audit, which depend on the model, and on the dtypes of volunteers and gateway."""

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from contracts.support.files import write_atomically

CALIBRATION = "calibration.json"  # in the state directory; `--observe` writes it
EXACT = 1e-6  # a smaller gap is rounding of float32


class Activations(NamedTuple):
    """How far commitments of honest volunteers are from the audit's rows.

    exponents: share of points whose sign or exponent differs, on the mean of all chunks. mantissa: mean
    difference of the others' mantissas. The last two are the most that a single chunk may have.
    """

    exponents: float
    mantissa: float
    most_exponents: float
    most_mantissa: float


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


class Calibration(msgspec.Struct, forbid_unknown_fields=True):
    """The file. dtypes: of volunteers and audit. model: SHA-256 of its config.json."""

    dtypes: tuple[str, str]
    model: str
    numerics: Numerics


FLOAT32 = Numerics(tolerance=1e-5, most=1e-5, greedy=1e-3, gap_rate=0.0, near_rate=1e-4, logprob=1e-3)
HALF = Numerics(tolerance=0.05, most=0.25, greedy=0.25, gap_rate=0.0, near_rate=0.03, logprob=0.1)
LARGEST = {  # tolerances that honest volunteers may need
    FLOAT32: Numerics(tolerance=1e-4, most=1e-4, greedy=1e-2, gap_rate=0.0, near_rate=0.01, logprob=1e-2),
    HALF: Numerics(tolerance=0.05, most=0.25, greedy=1.0, gap_rate=0.01, near_rate=0.3, logprob=0.5),
}
LARGEST_ACTIVATIONS = {
    FLOAT32: Activations(0.005, 0.05, 0.15, 0.5),
    HALF: Activations(0.1, 4.0, 0.5, 25.0),
}


def default_of(dtypes: tuple[str, str]) -> Numerics:
    return FLOAT32 if set(dtypes) == {"float32"} else HALF


def numerics_of(dtypes: tuple[str, str], model: str, directory: Path) -> Numerics:
    """Returns measured tolerances if the state directory has some, else the defaults. Raises ValueError.

    dtypes: of volunteers and audit. model: SHA-256 of its config.json.
    """
    path = directory / CALIBRATION
    if not path.is_file():
        return default_of(dtypes)
    try:
        written = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no calibration: {error}; remove it, and measure again") from None
    if written.dtypes != dtypes:
        of = " and ".join(written.dtypes)
        raise ValueError(f"{path} is of {of}, not of {' and '.join(dtypes)}: remove it")
    if written.model != model:
        raise ValueError(f"{path} is of another model: remove it, and measure again")
    return written.numerics


def lacks_commitments(directory: Path) -> bool:
    """Returns True if no tolerances of commitments were measured. A damaged file is the gateway's to name."""
    path = directory / CALIBRATION
    if not path.is_file():
        return True
    with suppress(OSError, ValueError):
        return msgspec.json.decode(path.read_bytes(), type=Calibration).numerics.activations is None
    return False


def implausible(measured: Numerics, default: Numerics) -> str | None:
    """Returns which measured tolerance honest volunteers do not need, or None. default: FLOAT32 or HALF."""
    values = asdict(measured)
    largest = asdict(replace(LARGEST[default], activations=None))
    return next((name for name, most in largest.items() if most is not None and values[name] > most), None)


def are_implausible(measured: Activations, default: Numerics) -> bool:
    largest = LARGEST_ACTIVATIONS[default]
    return not all(each <= most for each, most in zip(measured, largest, strict=True))


def write_calibration(directory: Path, calibration: Calibration) -> None:
    text = msgspec.json.format(msgspec.json.encode(calibration), indent=2)
    write_atomically(directory / CALIBRATION, text + b"\n", 0o600)
