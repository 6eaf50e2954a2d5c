"""Mathematical problems from data sets, and the verifier of their boxed answers, with math-verify.

Plugs into a run as its domain (`domain=math`), whose verifier runs in the judging workers.
"""
