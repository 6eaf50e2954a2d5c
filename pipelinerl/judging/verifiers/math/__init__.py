"""The verifier of mathematical answers: math-verify, and rules where it is too generous or too strict."""

from pipelinerl.judging.verifiers.math.verifier import MathVerifier

__all__ = ["MathVerifier"]
