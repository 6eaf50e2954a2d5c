"""Objectives: one file each, plain PyTorch on `[T]` tensors, the formula in the docstring."""
