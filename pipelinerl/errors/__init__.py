"""Errors that end a run because a restart would not help, and descriptions of faults of user components.

Called by all packages of the pipeline. Must not know any of them.
"""


class PlanError(Exception):
    """The run is impossible as it is configured. The message says what to change."""


class PartError(PlanError):
    """A user component is faulty. The message names it, its file and line, and what was expected."""


class GaveUpError(Exception):
    """A worker ends the run because training cannot make progress. The worker is not restarted."""
