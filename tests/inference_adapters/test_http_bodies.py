"""Bodies that are no JSON, and impossible values: each has its status and the contract's error."""

import json

import pytest

from tests.inference_adapters.raw_requests import OK, answer_to, code, post

pytestmark = pytest.mark.usefixtures("serves_on")


NO_JSON = {
    "not JSON": b"hello",
    "cut off": OK[:-1],
    "not UTF-8": b'{"model": "\xff"}',
    "UTF-16": OK.decode().encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + OK,
    "half a surrogate pair": b'{"model": "scripted", "prompt": "\\ud800"}',
    "half a surrogate pair in a message": b'{"messages": [{"role": "user", "content": "\\udc00"}]}',
    "NaN": b'{"model": "scripted", "prompt": [1], "temperature": NaN}',
    "a number of 9000 digits": b'{"model": "scripted", "prompt": [1], "top_k": ' + b"9" * 9000 + b"}",
    "deeply nested": b"[" * 9000,
    "nothing": b"",
}


@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON)
@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/score", "/request_weight_update"]
)
def test_a_body_that_is_no_json_is_400(limited, path, body):
    assert code(answer_to(limited, post(path, body))) == (400, "bad_request")


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e-38},
        {"temperature": -0.1},
        {"temperature": 1e300},
        {"top_k": 10**400},
        {"top_k": -2},
        {"n": 129},
        {"n": 10**30},
        {"max_tokens": 2**31},
        {"seed": 2**63},
        {"stop_token_ids": [-1]},
        {"stop_token_ids": [0] * 2000},
        {"stop": ["x"] * 2000},
        {"prompt": [-1] * 3000},
        {"prompt": [2**31]},
        {f"field_{i}": i for i in range(500)},
    ],
    ids=lambda fields: str(fields)[:30],
)
def test_impossible_values_are_refused_with_openais_status(limited, fields):
    body = json.loads(OK) | fields
    assert code(answer_to(limited, post("/v1/completions", json.dumps(body).encode()))) == (
        400,
        "invalid_request",
    )


JOIN = {
    "run": "r",
    "epoch": 1,
    "group_name": "g",
    "backend": "gloo",
    "master_address": "127.0.0.1",
    "master_port": 1,
    "rank_offset": 1,
    "world_size": 2,
    "timeout_s": 1,
}
UPDATE = {
    "run": "r",
    "epoch": 1,
    "version": 1,
    "parameters": [{"name": "w", "dtype": "float32", "shape": [1]}],
    "bucket_bytes": 1,
    "timeout_s": 1,
}
BAD_CONTROL = [
    ("/init_process_group", JOIN | {"master_port": 0}),
    ("/init_process_group", JOIN | {"master_port": 65536}),
    ("/init_process_group", JOIN | {"timeout_s": 86400}),
    ("/init_process_group", JOIN | {"timeout_s": 1e-320 * 0}),
    ("/init_process_group", JOIN | {"run": "r\n"}),
    ("/init_process_group", JOIN | {"run": "r" * 1000}),
    ("/init_process_group", JOIN | {"group_name": ""}),
    ("/init_process_group", JOIN | {"epoch": 2**53}),
    ("/init_process_group", JOIN | {"world_size": 10**9}),
    ("/request_weight_update", UPDATE | {"timeout_s": 1e300}),
    ("/request_weight_update", UPDATE | {"version": 2**80}),
    ("/request_weight_update", UPDATE | {"parameters": [{"name": "w", "dtype": "float32", "shape": [-1]}]}),
    (
        "/request_weight_update",
        UPDATE | {"parameters": [{"name": "w", "dtype": "float32", "shape": [2**40] * 2}]},
    ),
    (
        "/request_weight_update",
        UPDATE | {"parameters": [{"name": "w" * 600, "dtype": "float32", "shape": [1]}]},
    ),
    ("/request_weight_update", UPDATE | {"tied": {"a\0": "b"}}),
    ("/abort_weight_update", {"run": "r", "epoch": -1, "version": 0}),
    ("/score", {"sequences": [[1]] * 1025}),
    ("/score", {"sequences": [[1, 2]], "temperature": 1e-45}),
]


@pytest.mark.parametrize(("path", "body"), BAD_CONTROL, ids=lambda value: str(value)[:40])
def test_impossible_values_of_the_control_side_are_422(limited, path, body):
    assert code(answer_to(limited, post(path, json.dumps(body).encode()))) == (422, "invalid_request")


@pytest.mark.parametrize("query", ["wait_s=nan", "wait_s=inf", "wait_s=1e9", "wait_s=-1"])
def test_impossible_waits_are_422(limited, query):
    asked = f"GET /weight_update/1?{query} HTTP/1.1\r\nHost: here\r\n\r\n".encode()
    assert code(answer_to(limited, asked)) == (422, "invalid_request")


def test_of_two_fields_of_one_name_the_last_counts(limited):
    twice = b'{"model": "no such model", ' + OK[1:]
    assert answer_to(limited, post("/v1/completions", twice))[0] == 200


def test_an_error_message_is_short_whatever_the_client_sends(limited):
    long = json.dumps(json.loads(OK) | {"x" * 15_000: 1}).encode()
    answer = answer_to(limited, post("/v1/completions", long))
    assert code(answer) == (400, "unsupported_parameter")
    assert len(answer[1]["error"]["message"]) <= 1000
