"""A run whose rollouts are made by volunteers, some of whom cheat, and what that costs."""
