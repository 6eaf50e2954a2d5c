"""Confines processes that evaluate a model's text. Called by judging's workers; must not know verifiers.

A process with one thread calls `confine` once, after its imports. To confine many processes, one process
prepares `Confinement(level, limits, readable)`, and each of its forks calls `enter()`. `strongest_level` runs
hostile programs and returns the strongest level that stops them all on this machine.
"""

from pipelinerl.judging.isolation.confinement import Confinement, Level, confine
from pipelinerl.judging.isolation.environment import clean_environment, close_all_but, imported_paths
from pipelinerl.judging.isolation.limits import Limits
from pipelinerl.judging.isolation.privileges import drop_privileges, undumpable
from pipelinerl.judging.isolation.selftest import strongest_level

__all__ = [
    "Confinement",
    "Level",
    "Limits",
    "clean_environment",
    "close_all_but",
    "confine",
    "drop_privileges",
    "imported_paths",
    "strongest_level",
    "undumpable",
]
