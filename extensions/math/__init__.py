"""Mathematical problems from data sets, and a verifier of boxed answers, which uses math-verify.

Plugs into a run as its domain (`domain=math`). The verifier processes call its verifier.
"""
