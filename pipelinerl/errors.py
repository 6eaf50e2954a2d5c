"""The error that a user sees in one line before a run starts."""


class PlanError(Exception):
    """The run is impossible as it is configured. The message says what to change."""
