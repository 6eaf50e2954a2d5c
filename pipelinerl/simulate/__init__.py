"""A run under a simulated clock: real admission, lag and batching, and devices that only take time.

Called by users' command alone. Must not know processes, HTTP and torch.
"""
