"""Warning signs in the metrics of optimizer steps, reported when they begin.

Built by trainer rank 0, which passes it the metrics of every step. Must not know where metrics are written.
"""

from pipelinerl.health.rules import Alarm, Health, HealthRules

__all__ = ["Alarm", "Health", "HealthRules"]
