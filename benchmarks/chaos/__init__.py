"""Faults of every kind in runs that a seed draws: does each run go on, and is every group accounted for?

`plan` draws a run and its faults; it starts nothing. `running` launches it, `faults` does one fault,
`recovery` waits until the run moves again, `checks` says what is wrong, and `table` shows it all.
"""
