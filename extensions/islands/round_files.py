"""The file formats of kept rounds: gradients, states and manifests."""

import torch
from pydantic import BaseModel, ConfigDict, Field

from extensions.islands.outer import OuterGradient, Snapshot
from extensions.islands.quantise import QUANTISERS
from extensions.islands.ring import Partition
from extensions.islands.tensor_files import Contents
from extensions.stored_weights.store.part_file import Wanted

RUN = "rounds"  # takes the place of the run's id in the paths of a store
MAX_BYTES = 4096  # of the JSON of KeptRound and Newest


class KeptFile(BaseModel):
    """A file in `objects/`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.sha256, self.bytes)


class KeptRound(BaseModel):
    """The manifest of one round, `runs/rounds/NUMBER.json`: its gradient and the state after it.

    The round before a loaded checkpoint may have only the state.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    round: int = Field(ge=0)
    gradient: KeptFile | None = None
    state: KeptFile | None = None


class Newest(BaseModel):
    """The number of the newest kept round, `runs/rounds/latest.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    round: int = Field(ge=0)


def gradient_contents(gradient: OuterGradient) -> Contents:
    """Converts a gradient to the contents of its file."""
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
    """Converts the contents of a file to a gradient. Raises ValueError, KeyError or TypeError."""
    tensors, numbers = contents
    if tensors["messages"].dtype is not torch.uint8 or tensors["messages"].dim() != 1:
        raise ValueError("messages must be a vector of uint8")
    partition = Partition(*numbers.pop("partition"))
    quantiser = QUANTISERS[numbers["quantise"]]
    sizes = [quantiser.size(end - begin) for begin, end in partition.spans()] if numbers["updates"] else []
    if sum(sizes) != len(tensors["messages"]):
        raise ValueError(f"{len(tensors['messages'])} bytes of messages, not {sum(sizes)}")
    return OuterGradient(partition=partition, messages=tensors["messages"].split(sizes), **numbers)


def state_contents(state: Snapshot) -> Contents:
    """Converts a state to the contents of its file."""
    tensors = {"anchor": state.anchor}
    if state.momentum is not None:
        tensors["momentum"] = state.momentum
    return tensors, {"round": state.round, "lineage": state.lineage}


def state_in(contents: Contents) -> Snapshot:
    """Converts the contents of a file to a state. Raises ValueError, KeyError or TypeError."""
    tensors, numbers = contents
    if any(tensor.dtype is not torch.float32 or tensor.dim() != 1 for tensor in tensors.values()):
        raise ValueError("the tensors of a state must be float32 vectors")
    return Snapshot(anchor=tensors["anchor"], momentum=tensors.get("momentum"), **numbers)
