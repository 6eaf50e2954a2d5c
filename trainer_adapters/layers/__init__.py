"""Layers that read more of a pack than their own sequence, made to run within each sequence.

`TokenScorer` calls `prepare`. `kinds` lists the classes of modules, `carried` and `indexed` wrap the two
kinds, and `held_packing` gives them the packing. This package must not depend on sharding or on output heads.
"""
