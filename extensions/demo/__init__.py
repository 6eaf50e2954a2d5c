"""The demo: small models that can be trained on a CPU, and small domains.

Plugs into a run as the maker of its model (`model=sums`) and as its domain (`domain=guessing`). Must not know
how a run trains.
"""
