"""Simulates a run: the real admission, lag and batching with a simulated clock and simulated devices.

Plugs into nothing: users and benchmarks call it with a run's configuration. Must not know processes, HTTP or
torch.
"""
