"""Commands between runs: how hard problems are, which answers are short, and the mean of two models.

Plugs into nothing: it is called by the user. Must not know a run's processes.
"""
