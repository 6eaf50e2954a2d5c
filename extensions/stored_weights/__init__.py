"""Weight transports by a store of signed files: `weights=relay` and `weights=shared`.

Plugs into launcher, trainer and actor as a weight transport, into servers as weight channels, and into the
conformance kit as G12 to G16.
"""
