"""Verifiers judge answers. They run only in confined workers, and must not know domains, service or run."""

from pipelinerl.judging.verifiers.base import Judge, Verifier, build_judge, make_verifier

__all__ = ["Judge", "Verifier", "build_judge", "make_verifier"]
