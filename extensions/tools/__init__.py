"""Commands between runs: select problems by difficulty, collect short answers, average two models.

Plugs into nothing; called by the user. Must not know a run's processes.
"""
