"""The errors that end a run because a restart would not help, and what a part of the user's did wrong.

Called by whatever raises or reports them. Must not know any other package of the pipeline.
"""


class PlanError(Exception):
    """The run is impossible as it is configured. The message says what to change."""


class PartError(PlanError):
    """A part of the user's does not do what it must. The message says which, where, and what was expected."""


class GaveUpError(Exception):
    """A worker ends the run because training cannot make progress. The worker is not restarted."""
