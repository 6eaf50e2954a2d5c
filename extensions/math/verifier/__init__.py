"""The verifier of mathematical answers: math-verify, with rules for cases that it judges wrongly."""

from extensions.math.verifier.verifier import MathVerifier

__all__ = ["MathVerifier"]
