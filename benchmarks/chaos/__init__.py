"""Injects all kinds of faults into runs drawn from a seed, and checks that runs continue and lose no group.

`plan` draws a run and its faults; it starts nothing. `running` launches the run, `faults` injects one fault,
`recovery` waits until the run makes progress, `checks` finds errors, and `table` shows the results.
"""
