"""Isolation: the rights that a process gives up before it evaluates a model's text.

Called by judging's workers. Must not know verifiers or verdicts.

A process with one thread calls `confine` once, after its imports. For many processes, one process prepares
`Confinement(level, limits, readable)`, and each of its forks calls `enter()`. `strongest_level` runs hostile
programs, and returns the level that withstands them on this machine.
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
