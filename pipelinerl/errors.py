"""The error that a user sees in one line before a run starts."""


class PlanError(Exception):
    """A run that cannot be as it was asked for. The message says what to change."""
