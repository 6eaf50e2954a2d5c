"""What of the SGLang adapter needs no SGLang: its refusals to start, and how it reads SGLang's answers."""

import argparse
import subprocess
import sys

import pytest

from contracts.conformance.tiny_model import make_tiny_model
from inference_adapters.sglang.child import SglangError
from inference_adapters.sglang.engine import read_delta
from inference_adapters.sglang.options import Options, add_options


@pytest.mark.parametrize(
    ("installed", "says"),
    [
        (None, "SGLang is not installed here (`make sglang-env`)"),
        ("0.5.24", "SGLang 0.5.24 is installed; this adapter knows 0.5.23"),
    ],
)
def test_an_engine_that_is_not_the_one_it_knows(tmp_path, installed, says):
    if installed:
        (tmp_path / f"sglang-{installed}.dist-info").mkdir()
        metadata = f"Metadata-Version: 2.1\nName: sglang\nVersion: {installed}\n"
        (tmp_path / f"sglang-{installed}.dist-info" / "METADATA").write_text(metadata)
    command = [sys.executable, "-m", "inference_adapters.sglang", "--model", "m"]
    ended = subprocess.run(command, text=True, capture_output=True, env={"PYTHONPATH": f"{tmp_path}:."})
    assert ended.returncode == 1
    assert ended.stderr.startswith("cannot serve: ") and ended.stderr.count("\n") == 1
    assert says in ended.stderr


def options(model: str, *given: str) -> Options:
    parser = argparse.ArgumentParser()
    add_options(parser)
    args, others = parser.parse_known_args(["--model", model, *given])
    return Options.of(args, others)


def test_what_the_contract_decides_is_refused_and_the_rest_handed_on(tmp_path):
    model = make_tiny_model(tmp_path)
    with pytest.raises(ValueError, match="--api-key=k cannot be set: use --token"):
        options(model, "--api-key=k")
    taken = options(model, "--mem-fraction-static", "0.5", "--max-total-tokens", "108", "--tp", "2")
    assert (taken.workers, taken.context, taken.others[:2]) == (2, 100, ("--mem-fraction-static", "0.5"))
    said = taken.for_sglang(version=7)
    assert said[said.index("--weight-version") + 1] == "7"


def test_versions_come_with_the_last_tokens():
    meta = {"finish_reason": None, "output_token_logprobs": [[-0.5, 8, None]]}
    first = read_delta({"output_ids": [8], "meta_info": meta})
    assert (first.token_ids, first.logprobs, first.versions, first.finish_reason) == ([8], [-0.5], [], None)
    spans = [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 3}]
    end = {"finish_reason": {"type": "length"}, "output_token_logprobs": [], "weight_versions": spans}
    last = read_delta({"output_ids": [], "meta_info": end})
    assert (last.versions, last.finish_reason) == ([3, 3, 4], "length")
    with pytest.raises(SglangError, match="too long"):
        read_delta({"error": {"message": "too long"}})
