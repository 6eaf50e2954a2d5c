"""Verifiers: what decides whether an answer is right. They run in confined workers, and nowhere else.

Built in a worker from the configuration, which names their classes. Must not know domains, the service or
the run.
"""

from pipelinerl.judging.verifiers.base import Judge, Verifier, build_judge

__all__ = ["Judge", "Verifier", "build_judge"]
