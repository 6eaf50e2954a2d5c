"""A trainer with full weights on every rank, which divides them among the ranks for `shards`."""

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector

from examples.plain_trainer import PlainTrainer

PADDING = 3  # elements, at the least


class SharesOutItsReplicas(PlainTrainer):
    """Each rank owns an equal part of the weights, end to end, in a buffer that is padded with zeros."""

    @torch.no_grad()
    def shards(self) -> list[torch.Tensor]:
        weights = parameters_to_vector(self._model.parameters())
        ranks = self._spec.world_size
        size = (len(weights) + PADDING) // ranks + 1
        padded = torch.nn.functional.pad(weights, (0, size * ranks - len(weights)))
        self._part = padded.view(ranks, size)[self._spec.rank].clone()
        return [self._part]

    def adopt(self) -> None:
        parts = [torch.empty_like(self._part) for _ in range(self._spec.world_size)]
        dist.all_gather(parts, self._part)
        self._put(torch.cat(parts))

    @torch.no_grad()
    def _put(self, weights: torch.Tensor) -> None:
        parameters = list(self._model.parameters())
        sizes = [parameter.numel() for parameter in parameters]
        parts = weights[: sum(sizes)].split(sizes)
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(part.view(parameter.shape))
