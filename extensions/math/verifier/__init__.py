"""The verifier of mathematical answers: math-verify, and rules for answers that it misjudges."""

from extensions.math.verifier.verifier import MathVerifier

__all__ = ["MathVerifier"]
