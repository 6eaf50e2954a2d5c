"""Isolation: what a process that evaluates text of a model gives up before it does.

Called by judging's workers. Must not know verifiers or verdicts.

A process calls `confine` once, alone in its process and after its imports. What is the same for many
processes is made once: `Confinement(level, limits, readable)`, then `enter()` in each fork of the maker.
`strongest_level` tries hostile programs, and says which level holds them on this machine.
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
