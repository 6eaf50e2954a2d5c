"""A run under a simulated clock: real admission, lag and batching, and devices that only take time.

Called by users' command and by benchmarks. Must not know processes, HTTP and torch.
"""
