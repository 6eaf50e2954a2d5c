"""Reward terms: additions to a domain's reward once a group is complete. One file each, formulas only.

Called by the actor. Must not know servers or files.
"""
