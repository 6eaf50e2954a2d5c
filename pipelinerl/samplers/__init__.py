"""Samplers: which training problem comes next. One file each, pure state.

Called by the actor. Must not know servers, files or clocks: a resumed run restores their state.
"""
