"""Samplers choose the next training problem. One per file, pure state.

Called by the actor. Must not know servers, files or clocks, because a resumed run restores a sampler's state.
"""
