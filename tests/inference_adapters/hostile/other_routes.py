"""Requests to routes of vLLM's and SGLang's own. A server without such a route answers 404 or 405."""

from collections.abc import Iterator

from tests.inference_adapters.hostile.bodies import BIG, SURROGATE, TEXT, Hostile, Raw, to_json, valid_bodies

ROUTES = [
    "/v1/embeddings", "/pooling", "/classify", "/rerank", "/invocations", "/v1/audio/transcriptions",
    "/v1/load_lora_adapter", "/pause", "/resume", "/sleep", "/collective_rpc", "/update_weights",
    "/reset_prefix_cache", "/abort_requests", "/generate", "/v1/completions/render",
    "/v1/chat/completions/render", "/scale_elastic_ep", "/server_info",
]  # fmt: skip
BODIES = {
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


def to_other_routes(model: str) -> Iterator[Hostile]:
    text = to_json(valid_bodies(model)[TEXT]).encode()
    for path in ROUTES:
        for body in (b"", b"{", text, b'{"prompt": 7, "input": [[]]}'):
            yield Hostile(path, body)
    for path, bodies in BODIES.items():
        for body in bodies:
            yield Hostile(path, to_json({"model": model} | body).encode())
