"""A valid body for each request of the contract. A server without a group refuses the control requests."""

from typing import Any

from contracts.channel import ChannelUpdateRequest, InitWeightChannelRequest
from contracts.inference import (
    AbortWeightUpdateRequest,
    ChatCompletionRequest,
    CompletionRequest,
    InitProcessGroupRequest,
    LeaveProcessGroupRequest,
    ScoreRequest,
    SleepRequest,
    WakeRequest,
    WeightUpdateRequest,
)
from contracts.wire import Request

OF_RUN = {"run": "r", "epoch": 1}
WEIGHT = {"name": "w", "dtype": "float32", "shape": [2]}
SAMPLING = {"model": "scripted", "max_tokens": 3, "temperature": 1.0, "stop_token_ids": [1]}
VALID: dict[type[Request], dict[str, Any]] = {
    InitProcessGroupRequest: OF_RUN | {
        "group_name": "g", "backend": "gloo", "master_address": "127.0.0.1", "master_port": 9,
        "world_size": 2, "rank_offset": 1, "timeout_s": 0.2,
    },
    LeaveProcessGroupRequest: OF_RUN,
    WeightUpdateRequest: OF_RUN | {
        "version": 1, "parameters": [WEIGHT], "tied": {"v": "w"}, "bucket_bytes": 8, "timeout_s": 700,
    },
    InitWeightChannelRequest: OF_RUN | {
        "kind": "relay", "sources": ["http://127.0.0.1:9/"],
        "public_keys": [{"id": "k", "ed25519": "0" * 64}],
    },
    ChannelUpdateRequest: OF_RUN | {"version": 1, "manifest_sha256": "0" * 64, "timeout_s": 700},
    AbortWeightUpdateRequest: OF_RUN | {"version": 1},
    SleepRequest: OF_RUN | {"timeout_s": 10},
    WakeRequest: OF_RUN,
    ScoreRequest: {"sequences": [[1, 2]], "temperature": 1.0},
    CompletionRequest: SAMPLING | {"prompt": [1]},
    ChatCompletionRequest: SAMPLING | {"messages": [{"role": "user", "content": "1 + 1 ="}]},
}  # fmt: skip
