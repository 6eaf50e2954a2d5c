"""Helpers for processes, ports, files and messages that the contracts, the adapters and the pipeline share.

Nothing here crosses a process boundary, and nothing here knows the contracts, an adapter or the pipeline.
"""
