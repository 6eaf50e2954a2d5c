"""Units of measurement, with their dimensions and exact conversion factors."""

import re
from fractions import Fraction
from typing import NamedTuple

METRIC = {"mm": "0.001", "cm": "0.01", "m": "1", "km": "1000"}
LENGTHS = {**METRIC, "in": "0.0254", "ft": "0.3048", "yd": "0.9144", "mi": "1609.344"}
TIMES = {"ms": "0.001", "s": "1", "min": "60", "h": "3600", "day": "86400", "week": "604800"}
MASSES = {"mg": "0.001", "g": "1", "kg": "1000", "oz": "28.349523125", "lb": "453.59237"}
VOLUMES = {"ml": "0.000001", "l": "0.001", "gal": "0.003785411784", "qt": "0.000946352946"}
DIMENSIONS = {
    "length": LENGTHS,
    "time": TIMES,
    "mass": MASSES,
    "length^3": VOLUMES,
    "money": {"cent": "0.01", "dollar": "1"},
    "angle": {"degree": "1", "radian": "57.29577951308232"},
    "calendar": {"month": "1", "year": "12"},
    "half of a day": {"am": "1"},
    "other half of a day": {"pm": "1"},
}
NAMES = {
    "mm": "millimeter millimetre",
    "cm": "centimeter centimetre",
    "m": "meter metre",
    "km": "kilometer kilometre",
    "in": "inch inche",
    "ft": "foot feet",
    "yd": "yard",
    "mi": "mile",
    "s": "second sec",
    "min": "minute",
    "h": "hour hr",
    "mg": "milligram",
    "g": "gram",
    "kg": "kilogram",
    "oz": "ounce",
    "lb": "pound",
    "ml": "milliliter millilitre",
    "l": "liter litre",
    "gal": "gallon",
    "qt": "quart",
    "dollar": "$ usd",
    "degree": "deg",
    "radian": "rad",
    "year": "yr",
    "mi/h": "mph",
    "km/h": "kmh kph",
}
KNOWN = {unit: (name, Fraction(size)) for name, units in DIMENSIONS.items() for unit, size in units.items()}
SHORT = {long: short for short, names in NAMES.items() for long in names.split()}
POWERS = ((2, r"^(?:square|sq)\.?\s+|\s+squared$"), (3, r"^(?:cubic|cu)\.?\s+|\s+cubed$"))


class Unit(NamedTuple):
    dimension: str
    factor: Fraction  # size in the dimension's base unit


def unit_of(words: str, power: int = 1) -> Unit | None:
    """Returns the unit that the words name, or None for other words. power: its exponent."""
    words = words.lower().strip().rstrip(".")
    for raised, pattern in POWERS:
        if re.search(pattern, words):
            words = re.sub(pattern, "", words)
            power = raised
    parts = [_short(part) for part in re.split(r"\s*/\s*|\s+per\s+", words)]
    parts = [part for named in parts for part in named.split("/")]
    if len(parts) > 2 or not all(part in KNOWN for part in parts):
        return None
    return _quotient(*parts, power) if len(parts) == 2 else _raised(parts[0], power)


def _short(name: str) -> str:
    name = re.sub(r"[^a-z/$]", "", name)
    if name not in KNOWN and name not in SHORT:
        name = name.removesuffix("s")
    return SHORT.get(name, name)


def _raised(name: str, power: int) -> Unit:
    dimension, factor = KNOWN[name]
    return Unit(dimension if power == 1 else f"{dimension}^{power}", factor**power)


def _quotient(above: str, below: str, power: int) -> Unit:
    first, of_first = KNOWN[above]
    second, of_second = KNOWN[below]
    return Unit(f"{first}/{second}^{power}", of_first / of_second**power)
