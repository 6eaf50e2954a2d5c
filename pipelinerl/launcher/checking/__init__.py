"""Checks a run before any of its processes starts. The checks raise PlanError, whose message is one line.

Called by `prepare.py`, in a forked process, because the checks import the configured components.
"""
