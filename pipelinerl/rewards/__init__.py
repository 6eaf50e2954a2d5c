"""Reward terms: what is added to a domain's reward once a group is whole. One file each, formulas only."""
