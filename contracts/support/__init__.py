"""Helpers for processes, ports, files and messages that the contracts, the adapters and the pipeline share.

This package must not import the contracts, an adapter or the pipeline.
"""
