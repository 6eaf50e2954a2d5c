"""Simulation of a run: real admission, lag and batching, with a simulated clock and simulated devices.

Plugs into nothing: it is called by the user's command and by benchmarks, and reads a run's configuration.
Must not know processes, HTTP and torch.
"""
