"""Draws problems as a function of node, version and count, so that a node's draws can be verified."""

import random

from pipelinerl.domains.base import Domain
from pipelinerl.samplers.base import Sampler


def assigned(seed: int, node: str, version: int, count: int, problems: int) -> int:
    """Returns the problem, from 0 to `problems` - 1, for the node's draw `count` (from 0) at a version."""
    return random.Random(f"{seed}/{node}/{version}/{count}").randrange(problems)


class Assigned(Sampler):
    """Fixed data sampling, which prevents nodes from selecting easy problems.

    Source: INTELLECT-2, arXiv 2505.07291, sanity checks. The paper's seed, address · step + submissions, is
    equal for all nodes at step 0, and repeats at later steps. Here it is a hash of the run's seed, the node,
    the version and the count.

    A resumed run continues the count of the version that it resumes at.

    node: the node's name, unique in the run.
    """

    def __init__(self, domain: Domain, seed: int, node: str):
        super().__init__(domain, seed)
        if not isinstance(node, str) or not node:
            raise ValueError(f"node is {node!r}; it is the node's name, a text that is not empty")
        self._node = node
        self._version = self._count = 0

    def next(self, version: int) -> int:
        if version != self._version:
            self._version = version
            self._count = 0
        self._count += 1
        return assigned(self._seed, self._node, version, self._count - 1, self._domain.train_size)

    def state_dict(self) -> dict[str, int]:
        return {"version": self._version, "count": self._count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._version = state["version"]
        self._count = state["count"]
