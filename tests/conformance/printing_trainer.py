"""A broken trainer whose module prints when it is imported, as some backends do."""

from tests.conformance.trainer_mutants.forward import ForgetsTemperature

print("a backend's greeting")


class PrintsAndForgetsTemperature(ForgetsTemperature):
    """A trainer on which the kit must report as pure JSON."""
