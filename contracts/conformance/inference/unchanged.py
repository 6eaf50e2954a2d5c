"""Checks that a refused request does not change the run and the weights that a server reports."""

from typing import Any

from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError


async def state_of(server: Server) -> tuple[Any, ...]:
    """Returns run, group, channel and weights from `/contract`."""
    contract = await server.contract()
    channel = contract.channel and (contract.channel.kind, contract.channel.epoch, contract.channel.follow)
    return contract.run, contract.group, channel, contract.weights


async def check_same_state(server: Server, before: tuple[Any, ...], what: str) -> None:
    """Checks that the state is unchanged and the server ready. what: description of the refused requests."""
    after = await state_of(server)
    if after != before or not await server.ready():
        raise GuaranteeError(
            f"/contract said {before}, and says {after}; ready: {await server.ready()}",
            "the same: a refusal changes nothing",
            f"{server}: {what[:600]}",
        )
