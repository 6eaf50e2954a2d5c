"""Reward terms: additions to the rewards of a complete group. One per file, formulas only.

Called by the actor. Must not know servers or files.
"""
