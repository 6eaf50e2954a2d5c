"""Verifiers decide whether an answer is right. They run only in confined workers.

Built in a worker from the configuration, which names their classes. Must not know domains, the service or
the run.
"""

from pipelinerl.judging.verifiers.base import Judge, Verifier, build_judge, make_verifier

__all__ = ["Judge", "Verifier", "build_judge", "make_verifier"]
