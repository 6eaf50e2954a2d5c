"""Environments of the package `verifiers`, which run in a Python environment of their own.

Only `verifiers_worker` imports the package, and is run by that Python.
"""
