"""The measures by which two systems are compared: samples per second, and seconds to a success rate.

It does no I/O.
"""

from dataclasses import dataclass

import numpy as np

WARM_UP = 5  # batches that do not count for throughput
MEAN_OF = 5  # batches over which success is averaged


@dataclass(frozen=True)
class Curve:
    """A run, described by its sampled rollouts.

    began: when training began, with the model loaded and the servers up, in unix seconds.
    batches: when each batch was complete, and the share of its rollouts that solved their problem.
    cpu_s: CPU seconds by process, between the ends of the batch `WARM_UP` and the last one.
    """

    began: float
    batches: list[tuple[float, float]]
    batch_size: int
    cpu_s: dict[str, float]

    @property
    def samples_per_s(self) -> float:
        """Rollouts per second after the warm-up."""
        ends = [end for end, _ in self.batches[WARM_UP - 1 :]]
        return self.batch_size * (len(ends) - 1) / (ends[-1] - ends[0])

    @property
    def cpu_ms_per_sample(self) -> float:
        """CPU milliseconds per rollout after the warm-up, of all processes together."""
        return sum(self.cpu_ms_by_process.values())

    @property
    def cpu_ms_by_process(self) -> dict[str, float]:
        """CPU milliseconds per rollout after the warm-up."""
        rollouts = self.batch_size * (len(self.batches) - WARM_UP)
        return {name: 1e3 * spent / rollouts for name, spent in self.cpu_s.items()}

    def seconds_to(self, success: float) -> float:
        """Seconds until the mean success of `MEAN_OF` batches reaches `success`; infinite if never."""
        shares = np.array([share for _, share in self.batches])
        means = np.convolve(shares, np.full(MEAN_OF, 1 / MEAN_OF), mode="valid")
        reached = np.flatnonzero(means >= success)
        return self.batches[reached[0] + MEAN_OF - 1][0] - self.began if reached.size else np.inf
