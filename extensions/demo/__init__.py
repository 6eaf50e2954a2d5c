"""The demo: small models that a CPU trains, and small domains. Most models are made unreliable on purpose.

Plugs into a run as what makes its model (`model=sums`), and as its domain (`domain=guessing`). Must not know
how a run trains.
"""
