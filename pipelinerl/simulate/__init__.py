"""Simulation of a run: real admission, lag and batching under a simulated clock, and devices that only take time.

Called by the user's command and by benchmarks. Must not know processes, HTTP and torch.
"""
