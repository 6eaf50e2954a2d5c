"""The files of a round: its gradient, the state after it, and their records."""

import torch
from pydantic import BaseModel, ConfigDict, Field

from extensions.islands.outer import OuterGradient, Snapshot
from extensions.islands.quantise import QUANTISERS
from extensions.islands.ring import Partition
from extensions.islands.tensor_files import Contents
from extensions.stored_weights.store.part_file import Wanted

RUN = "rounds"  # in place of the run's id in the paths of a store
MAX_BYTES = 4096  # of a KeptRound and of a Newest


class KeptFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.sha256, self.bytes)


class KeptRound(BaseModel):
    """The kept files of a round, `runs/rounds/NUMBER.json`: its gradient, and the state after it.

    The round before a checkpoint may have only a state.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    round: int = Field(ge=0)
    gradient: KeptFile | None = None
    state: KeptFile | None = None


class Newest(BaseModel):
    """The newest kept round, `runs/rounds/latest.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    round: int = Field(ge=0)


def gradient_contents(gradient: OuterGradient) -> Contents:
    """Returns the contents of a gradient's file."""
    partition = gradient.partition
    numbers = {
        "round": gradient.round,
        "before": gradient.before,
        "updates": dict(gradient.updates),
        "weight": gradient.weight,
        "quantise": gradient.quantise,
        "partition": [partition.elements, partition.parts, partition.chunk],
        "replaces": gradient.replaces,
    }
    messages = torch.cat([torch.empty(0, dtype=torch.uint8), *gradient.messages])
    return {"messages": messages}, numbers


def gradient_in(contents: Contents) -> OuterGradient:
    """Returns the gradient in a file. Raises ValueError, KeyError or TypeError if it is invalid."""
    tensors, numbers = contents
    if tensors["messages"].dtype is not torch.uint8 or tensors["messages"].dim() != 1:
        raise ValueError("messages that are no bytes")
    partition = Partition(*numbers.pop("partition"))
    quantiser = QUANTISERS[numbers["quantise"]]
    sizes = [quantiser.size(end - begin) for begin, end in partition.spans()] if numbers["updates"] else []
    if sum(sizes) != len(tensors["messages"]):
        raise ValueError(f"{len(tensors['messages'])} bytes of messages, not {sum(sizes)}")
    return OuterGradient(partition=partition, messages=tensors["messages"].split(sizes), **numbers)


def state_contents(state: Snapshot) -> Contents:
    tensors = {"anchor": state.anchor}
    if state.momentum is not None:
        tensors["momentum"] = state.momentum
    return tensors, {"round": state.round, "lineage": state.lineage}


def state_in(contents: Contents) -> Snapshot:
    """Returns the state in a file. Raises ValueError, KeyError or TypeError if it is invalid."""
    tensors, numbers = contents
    if any(tensor.dtype is not torch.float32 or tensor.dim() != 1 for tensor in tensors.values()):
        raise ValueError("a state of tensors that are no float32 vectors")
    return Snapshot(anchor=tensors["anchor"], momentum=tensors.get("momentum"), **numbers)
