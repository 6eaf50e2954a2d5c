"""Checks a run before any of its processes starts. The checks raise PlanError, whose message is one line."""
