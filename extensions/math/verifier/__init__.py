"""The verifier of mathematical answers: math-verify, and rules where it is too generous or too strict."""

from extensions.math.verifier.verifier import MathVerifier

__all__ = ["MathVerifier"]
