"""Programs that a model writes: run confined on tests, and judged by their output (`domain=code`).

Plugs into the configuration as a domain, and into judging as a hosted verifier.
"""
