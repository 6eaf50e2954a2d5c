"""Simulation of a run: real admission, lag and batching, with a simulated clock and simulated devices.

Called by the user's command and by benchmarks. Must not know processes, HTTP and torch.
"""
