"""Bodies that are not JSON objects, and paths that a server of the contract does not have."""

from typing import Any

from tests.inference_adapters.hostile.http_bytes import BIG, DEEP, REFUSED, SURROGATE, Raw

BODIES: dict[str, bytes] = {
    "no body": b"", "null": b"null", "a list": b"[]", "a number": b"1e999",
    "half": b'{"model": "x", "prompt": [1,', "bad UTF-8": b'{"model": "\xff\xfe"}',
    "deep lists": b"[" * DEEP, "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP, "NUL": b"\0" * 100,
    "a number of 5000 digits": b'{"n": ' + b"1" * 5000 + b"}",
    "gzip": b"\x1f\x8b\x08\x00" + bytes(range(256)),
}  # fmt: skip
PATHS = {
    "/": (404, 405), "/v1": (404, 405), "/v1/engines": (404, 405), "/weight_update/": (404, 405),
    "/weight_update/abc": REFUSED, "/weight_update/-1": REFUSED, "/weight_update/1" + "0" * 400: REFUSED,
    "/weight_update/1?wait_s=NaN": REFUSED, "/weight_update/1?wait_s=1e400": REFUSED,
    "/weight_update/99?wait_s=-1": REFUSED, "/weight_update/99?wait_s=" + "9" * 5000: REFUSED,
    "/%00%ff": (404, 405), "/../../etc/passwd": (404, 405), "/v1/models/%ed%a0%80": (404, 405),
    "/health?challenge=" + "x" * 5000: None, "/health?challenge=%ed%a0%80": None,
}  # fmt: skip
ELSEWHERE = [  # paths of other servers' APIs, and of vLLM's own
    "/tokenize", "/detokenize", "/v1/responses", "/v1/messages", "/v1/embeddings", "/pooling", "/classify",
    "/rerank", "/invocations", "/inference/v1/generate", "/v1/audio/transcriptions", "/v1/load_lora_adapter",
    "/pause", "/resume", "/sleep", "/collective_rpc", "/update_weights", "/reset_prefix_cache",
    "/abort_requests", "/generate", "/v1/completions/render", "/v1/chat/completions/render",
    "/scale_elastic_ep", "/server_info",
]  # fmt: skip

OF_VLLM: dict[str, list[dict[str, Any]]] = {
    "/tokenize": [{"prompt": SURROGATE}, {"prompt": "x" * 300_000}, {"messages": [{"role": "\0"}]}],
    "/detokenize": [{"tokens": [2**30]}, {"tokens": [-1]}, {"tokens": [BIG]}, {"tokens": ["a"]}],
    "/v1/responses": [
        {"input": "x", "max_output_tokens": 2, "temperature": 1e-45},
        {"input": SURROGATE, "max_output_tokens": 2},
        {"input": [{"role": "user", "content": [7]}], "max_output_tokens": 2},
        {"input": "x", "max_output_tokens": 2, "temperature": Raw("NaN")},
        {"input": "x", "max_output_tokens": 2, "tools": [{"type": "function"}]},
    ],
    "/v1/messages": [{"max_tokens": 2, "temperature": 1e-40, "messages": [{"role": "user", "content": "x"}]}],
    "/inference/v1/generate": [{"token_ids": [2**30], "sampling_params": {"max_tokens": 2}}],
}
