"""Checks a run before any of its processes starts: each refusal is one line that says what to do.

Called by `prepare.py`, in a forked process, because the checks import what the configuration names.
"""
