"""The errors that end a run for a reason which a restart does not remove."""


class PlanError(Exception):
    """The run is impossible as it is configured. The message says what to change."""


class GaveUpError(Exception):
    """A worker ends the run, because going on would bring nothing. It is not started again."""
