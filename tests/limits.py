"""The one limit of time of tests: what takes longer hangs. A test never passes or fails by less."""

HANG_S = 600.0
