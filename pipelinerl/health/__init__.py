"""Detects warning signs in the metrics of optimizer steps.

Called by trainer rank 0 after every step. Must not know where metrics are written.
"""

from pipelinerl.health.rules import Alarm, Health, HealthRules

__all__ = ["Alarm", "Health", "HealthRules"]
