"""The checks of a request to join a weight group or a weight channel, before anything is done.

`weight_updates` calls them. Each raises ContractError, and none changes anything.
"""

from contracts.channel import InitWeightChannelRequest
from contracts.errors import ContractError, ErrorCode
from contracts.inference import EngineInfo, InitProcessGroupRequest
from extensions.stored_weights.server.public_keys import check_key
from extensions.stored_weights.server.weight_sources import Caller, SourceList
from inference_adapters.manifest_check import check_kv_cache

AnyJoinRequest = InitProcessGroupRequest | InitWeightChannelRequest


def check_claim(request: AnyJoinRequest, run: str | None, epoch: int | None) -> None:
    """Raises ContractError if the run or the epoch that holds the server does not admit the request."""
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


def check_channel(
    request: InitWeightChannelRequest,
    info: EngineInfo,
    capabilities: list[str],
    sources: SourceList,
    caller: Caller,
) -> None:
    """Raises ContractError if the server cannot join the channel, or must not use its sources."""
    if request.kind not in capabilities:
        raise ContractError(
            ErrorCode.UNSUPPORTED_CHANNEL, f"this server does not declare {request.kind}", "kind"
        )
    if request.kind == "shared":
        _refuse(request.follow, "follow", "a shared store is not followed: request each update")
        _refuse(len(request.sources) > 1, "sources", "a shared store is one directory")
    else:
        _refuse(request.proof is not None, "proof", "only a shared store has one")
    check_kv_cache(request.kv_cache, info)
    for key in request.public_keys:
        check_key(key)
    for source in request.sources:
        sources.check(source, request.kind, caller)


def _refuse(wrong: bool, param: str, why: str) -> None:
    if wrong:
        raise ContractError(ErrorCode.INVALID_REQUEST, f"{param}: {why}", param)
