"""Validates requests to join a weight group or a weight channel, for `membership`. It has no side effects."""

from contracts.channel import InitWeightChannelRequest
from contracts.errors import ContractError, ErrorCode
from contracts.inference import EngineInfo, InitProcessGroupRequest

AnyJoinRequest = InitProcessGroupRequest | InitWeightChannelRequest


def check_claim(request: AnyJoinRequest, run: str | None, epoch: int | None) -> None:
    """Raises ContractError if the server belongs to another run, or to the same or a newer epoch."""
    if run not in (None, request.run) and not request.takeover:
        raise ContractError(ErrorCode.OTHER_RUN, f"this server belongs to run {run}, not {request.run}")
    if run == request.run and epoch is not None and request.epoch <= epoch:
        raise ContractError(
            ErrorCode.STALE_EPOCH, f"epoch {request.epoch} is not newer than {epoch}, the current one"
        )


def check_group(request: InitProcessGroupRequest, info: EngineInfo) -> None:
    """Raises ContractError if the engine cannot be a member of the group."""
    if request.backend not in info.backends:
        raise ContractError(
            ErrorCode.UNSUPPORTED_BACKEND, f"{request.backend}: this server offers {info.backends}"
        )
    if request.backend == "nccl" and request.nccl_version != info.nccl_version:
        raise ContractError(
            ErrorCode.NCCL_MISMATCH,
            f"NCCL {request.nccl_version} (trainer) and {info.nccl_version} (server) cannot form a "
            "group: install the same version on both ends",
        )
    if request.rank_offset + info.ranks > request.world_size:
        raise ContractError(
            ErrorCode.INVALID_REQUEST,
            f"world_size {request.world_size} cannot hold {info.ranks} rank(s) from rank_offset "
            f"{request.rank_offset} on",
        )
