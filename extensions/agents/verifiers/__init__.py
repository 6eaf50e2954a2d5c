"""Environments of the package `verifiers`, which run in a Python environment of their own.

Only `worker.py` imports the package; the rest starts it.
"""
