"""Weights that travel through a store of signed files: `weights=relay` and `weights=shared`.

Plugs into launcher, trainer and actor as a weight transport. Plugs into servers as their weight channels, and
into the kit as G12 to G16.
"""
