"""The demo: small models, most of them made unreliable on purpose, and small domains, for training on a CPU.

Plugs into a run as the maker of its model (`model=sums`), and as its domain (`domain=guessing`). Must not
know how a run trains.
"""
