"""Simulates a run with its real admission, lag and batching, and with a simulated clock and devices.

Plugs into nothing; called by the user and by benchmarks, with a run's configuration. Must not know processes,
HTTP and torch.
"""
