"""Commands between runs: problems' difficulty, short answers, merged models, one process of a run again.

Plugs into nothing: users call it. Must not know a run's processes, except `replay`.
"""
