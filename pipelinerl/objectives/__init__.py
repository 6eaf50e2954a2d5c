"""Objectives: one per file, in plain PyTorch on `[T]` tensors, with the formula in the docstring.

Called by the learner for every micro-batch. Must not know ranks, steps or the trainer's backend.
"""
