"""Detects warning signs in the metrics of optimizer steps, and in groups that are dropped.

Called by trainer rank 0 after every step, and by the preprocessor after every group. Must not know where
metrics are written.
"""

from pipelinerl.health.rules import EQUAL_GROUPS, Alarm, Health, HealthRules, Streak

__all__ = ["EQUAL_GROUPS", "Alarm", "Health", "HealthRules", "Streak"]
