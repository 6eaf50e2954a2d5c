"""Samplers: which training problem comes next. One file each, pure state, no I/O."""
