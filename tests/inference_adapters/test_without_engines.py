"""What of the adapters of vLLM and SGLang needs neither; tests/engines tries the rest on the real engines."""

import argparse
import importlib
import re
import shutil
from types import SimpleNamespace

import pytest
import torch

from contracts.conformance.tiny_model import make_tiny_model
from inference_adapters.sglang import server_process
from inference_adapters.sglang.engine import SglangEngine
from inference_adapters.sglang.options import Options, add_options
from inference_adapters.sglang.sent_requests import read_delta
from inference_adapters.sglang.server_process import SglangError
from inference_adapters.vllm.responses import with_ends, with_possible, with_text_fields


@pytest.mark.parametrize(
    ("engine", "installed", "says"),
    [
        ("vllm", None, "vLLM is not installed here (`make vllm-env`, or pip install .[vllm])"),
        ("vllm", "0.320.0", "vLLM 0.320.0 is installed; this adapter knows 0.32"),
        ("sglang", "0.5.24", "SGLang 0.5.24 is installed; this adapter knows 0.5.23"),
    ],
)
def test_an_engine_that_is_not_the_one_it_knows(tmp_path, monkeypatch, engine, installed, says):
    if installed:
        (tmp_path / f"{engine}-{installed}.dist-info").mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {engine}\nVersion: {installed}\n"
        (tmp_path / f"{engine}-{installed}.dist-info" / "METADATA").write_text(metadata)
        monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.argv", [engine, "--model", "m"])
    main = importlib.import_module(f"inference_adapters.{engine}.__main__").main
    with pytest.raises(SystemExit, match=f"^cannot serve: {re.escape(says)}[^\n]*$"):
        main()


def test_a_call_of_vllm_that_was_cut_short_or_stopped_before_is_no_end():
    whole = {"message": {"tool_calls": [{"function": {}}]}}
    choices = [whole, whole, {"message": {"tool_calls": []}}]
    answer = {"choices": [c | {"index": i, "finish_reason": "tool_calls"} for i, c in enumerate(choices)]}
    reasons = [choice["finish_reason"] for choice in with_ends(answer, {}, {1}, {})["choices"]]
    assert reasons == ["tool_calls", "length", "stop"]


def test_tokens_that_vllm_cannot_sample_are_left_out_of_the_classic_form():
    answer = {"choices": [{"logprobs": {"top_logprobs": [None, {"a": -1.0, "b": -9999.0}]}}]}
    assert with_possible(answer)["choices"][0]["logprobs"]["top_logprobs"] == [None, {"a": -1.0}]


@pytest.mark.parametrize(("prompts", "common"), [([[5], [6]], None), ([[5], [5]], [5])])
def test_several_prompts_of_vllm_have_no_common_ids(prompts, common):
    answer = {"choices": [{"prompt_token_ids": ids} for ids in prompts]}
    assert with_text_fields(answer, content=True).get("prompt_token_ids") == common


def options(model: str, *given: str) -> Options:
    parser = argparse.ArgumentParser()
    add_options(parser)
    args, others = parser.parse_known_args(["--model", model, *given])
    return Options.of(args, others)


DECIDED = """--api-key=k --api --config --ssl-certfile --spec --speculative-algorithm=NGRAM
--enable-multi-layer-eagle --quantization=fp8 --quant --modelopt-quant=fp8 --kv-cache-dtype=fp8_e5m2"""


@pytest.mark.parametrize("given", DECIDED.split())
def test_what_the_contract_decides_is_refused(tmp_path, given):
    with pytest.raises(ValueError, match=f"^{given} cannot be set: "):
        options(make_tiny_model(tmp_path), given)


def test_the_rest_is_handed_on(tmp_path):
    model = make_tiny_model(tmp_path)
    given = ("--mem-fraction-static", "0.5", "--stream-interval", "4")
    taken = options(model, *given, "--context-length", "100", "--tp", "2")
    assert (taken.workers, taken.context, taken.others) == (2, 100, given)
    arguments = taken.for_sglang(version=7)
    assert arguments[arguments.index("--weight-version") + 1] == "7"


def event(ids: list[int], logprobs: list[float], total: int, reason: dict | None = None, **more) -> dict:
    """As SGLang sends it."""
    entries = [[logprob, token, None] for logprob, token in zip(logprobs, ids, strict=False)]
    meta = {"finish_reason": reason, "output_token_logprobs": entries, "completion_tokens": total}
    return {"output_ids": ids, "meta_info": meta | more}


SPANS = [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 3}]


def test_versions_come_with_the_last_tokens():
    first = read_delta(event([8], [-0.5], total=1), given=0)
    assert (first.token_ids, first.logprobs, first.versions, first.finish_reason) == ([8], [-0.5], [], None)
    end = event([], [], total=3, reason={"type": "length"}, weight_versions=SPANS)
    last = read_delta(end, given=3)
    assert (last.token_ids, last.versions, last.finish_reason) == ([], [3, 3, 4], "length")


def test_the_likeliest_tokens_are_those_that_can_be_sampled():
    likeliest = [[[-0.5, 8, None], [-3.4e38, 9, None]], None]
    given = event([8, 7], [-0.5, -1.0], total=2)
    given["meta_info"]["output_top_logprobs"] = likeliest
    assert read_delta(given, given=0, likeliest=2).top_logprobs == [[(8, -0.5)], []]
    assert read_delta(given, given=0).top_logprobs == ()


@pytest.mark.parametrize("waiting", [[], [5, 6]])
def test_what_an_abort_repeats_is_not_sampled_again(waiting):
    """The last token comes again, with every log-probability, behind what nobody has read yet."""
    sampled = [7, *waiting]
    every = [[-0.1 * token, token, None] for token in sampled]
    meta = {
        "finish_reason": {"type": "abort"},
        "completion_tokens": len(sampled),
        "output_token_logprobs": every[1:] + every,
        "weight_versions": [{"version": "3", "start": 0, "end": len(sampled)}],
    }
    last = read_delta({"output_ids": [*waiting, sampled[-1]], "meta_info": meta}, given=1)
    assert (last.token_ids, last.logprobs) == (waiting, [-0.1 * token for token in waiting])
    assert (last.versions, last.finish_reason) == ([3] * len(sampled), "abort")


def test_what_sglang_cannot_answer_is_an_error():
    with pytest.raises(SglangError, match="too long"):
        read_delta({"error": {"message": "too long"}}, given=0)
    full = event([], [], total=0, reason={"type": "abort", "status_code": 503, "message": "no memory left"})
    with pytest.raises(SglangError, match="no memory left"):
        read_delta(full, given=0)
    with pytest.raises(SglangError, match="sampled 2 tokens, and sent 1"):
        read_delta(event([8], [-0.5], total=2), given=0)


def test_an_update_that_finds_no_room_says_so(tmp_path, monkeypatch):
    engine = SglangEngine(options(make_tiny_model(tmp_path)), "0")
    assert engine.buffered({"w": torch.zeros(2)})["w"].is_shared()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=7))
    with pytest.raises(SglangError, match="/dev/shm is full: 7 bytes are left, and a bucket has 8"):
        engine.buffered({"w": torch.zeros(2)})


ALWAYS_PASSES_S = 0.2  # for no answer comes
SILENT = """
import http.server, sys, time

class Silent(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        time.sleep(1000)

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[-1])), Silent).serve_forever()
"""


@pytest.mark.asyncio
async def test_an_sglang_that_does_not_answer_is_ended(tmp_path, monkeypatch):
    (tmp_path / "silent.py").write_text(SILENT)
    monkeypatch.setattr(server_process, "LAUNCHER", tmp_path / "silent.py")
    server = server_process.SglangServer([], {})
    await server.ready()
    with pytest.raises(SglangError, match="did not answer at .* within 0.2 s, and was ended"):
        await server.post("/begin_weight_update", within_s=ALWAYS_PASSES_S)
    server._process.wait()
    assert server.ended()
    await server.close()
