"""Measures the weight transports: relays, deltas, what publishing costs a trainer, and a puller's memory.

`network` is an origin and relays whose uplinks are throttled, and `tree` pulls through them. `deltas` and
`staging` measure the store's files, and `memory` one puller alone. `runs` trains the demo with each.
"""
