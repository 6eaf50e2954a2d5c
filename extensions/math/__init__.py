"""Mathematical problems from data sets, and the verifier that judges their boxed answers with math-verify.

Plugs into a run as its domain (`domain=math`), whose verifier is called by the workers that judge.
"""
