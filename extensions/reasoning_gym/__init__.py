"""Tasks of the library reasoning-gym, and its scorers, which run in the judging workers.

Plugs into a run as its domain (`domain=reasoning_gym`, `domain=thinking_sums`), and makes word problems for
`domain=math`.
"""
