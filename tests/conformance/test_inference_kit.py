"""The inference kit as it is used: command line, pytest fixture, several servers as one weight group."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from contracts.conformance.inference.command import add_inference
from contracts.conformance.inference.kit import CODES, check_inference
from contracts.conformance.inference.reference import Reference
from contracts.conformance.tiny_model import make_hybrid_model, make_tiny_model
from contracts.support.token import TOKEN_VARIABLE
from tests.conformance.broken_servers import TOKEN
from tests.conformance.kept import assert_kept
from tests.conformance.servers import serving_mutant
from tests.inference_adapters.servers import CHANNELS, serving, wait_ready
from tests.limits import HANG_S

UPDATES = int(os.environ.get("SOAK_UPDATES", 50))  # of G8

PROTECTED = {TOKEN_VARIABLE: TOKEN}

pytest_plugins = ["contracts.conformance.pytest_plugin"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def reference(scripted_model) -> Reference:
    return Reference(scripted_model, trust_remote_code=True)


@pytest.fixture(scope="module")
def correct() -> Iterator[str]:
    with serving_mutant("Correct") as url:
        yield url


def run_here(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_inference(parser)
    options = parser.parse_args(arguments)
    return options.run(options)


def test_the_command_prints_a_table_and_ends_with_0(correct, scripted_model):
    asked = ["--url", correct, "--model", scripted_model, "--trust-remote-code", "--only", "G3"]
    ended = subprocess.run(
        [sys.executable, "-m", "contracts.conformance", "inference", *asked],
        env=os.environ | PROTECTED,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert ended.returncode == 0, ended.stderr
    assert "(depth: default)" in ended.stdout
    (row,) = [line for line in ended.stdout.splitlines() if line.startswith("│ G")]
    assert row.split("│")[2].strip() == "pass"


def test_a_failure_says_what_was_expected_and_how_to_see_it_again(scripted_model, capfd, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with serving_mutant("OmitsEndOfSequence") as url:
        asked = ["--url", url, "--model", scripted_model, "--trust-remote-code", "--only", "G9"]
        assert run_here(*asked) == 1
        shown, told = capfd.readouterr()
        assert run_here(*asked, "--part", "lines", "--json") == 1
        report = json.loads(capfd.readouterr().out)
    for text in ("expected:", "end-of-sequence", "reproduce:", "--only G9 --part lines"):
        assert text in shown
    assert TOKEN not in shown
    assert "G9 tokens round-trip ...\nG9 fail: " in told
    assert report["kept"] is False and report["depth"] == "default"
    (row,) = report["guarantees"]
    assert (row["verdict"], row["part"]) == ("fail", "lines")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "no server at http://127.0.0.1:1"),
        ({"--model": "/nothing"}, "/nothing is not a Hugging Face model directory"),
        ({"--only": "G99"}, "no guarantee G99"),
        ({"--only": "G3", "--part": "load"}, "G3 has no part load: they are updates, takeover"),
        ({"--part": "load"}, "the part load is of one guarantee: name it, and no other"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tiny, changes, says, capfd):
    asked = {"--url": "http://127.0.0.1:1", "--model": tiny} | changes
    assert run_here(*(word for pair in asked.items() for word in pair)) == 2
    output = capfd.readouterr()
    assert output.out == "" and says in output.err.splitlines()[-1]


def test_a_part_is_checked_alone_and_all_of_them_otherwise(correct, reference):
    (one,) = check_inference([correct], reference, token=TOKEN, only=["G10"], part="proofs")
    (all_parts,) = check_inference([correct], reference, token=TOKEN, only=["G10"])
    assert (one.state, one.measured) == ("pass", "proofs of the token")
    assert (one.part, all_parts.part) == ("proofs", None)
    assert all_parts.state == "pass"
    assert all_parts.measured.endswith("; proofs of the token; metrics of the contract")


def test_what_is_not_configured_or_offered_is_not_declared(reference):
    with serving("inference_adapters.scripted") as server:
        wait_ready(server.url, HANG_S)
        (verdict,) = check_inference([server.url], reference, only=["G10"])
    assert verdict.state == "not declared"
    assert verdict.measured == "start the server and the kit with PIPELINERL_TOKEN"


def test_several_servers_are_one_weight_group(correct, reference):
    with serving_mutant("LeavesTheTiedHeadStale") as broken, serving_mutant("Correct") as another:
        for code, part in (("G2", "modes"), ("G6", "requests")):
            asked = {"token": TOKEN, "only": [code], "part": part}
            assert_kept(check_inference([correct, another], reference, **asked))
        (verdict,) = check_inference([correct, broken], reference, token=TOKEN, only=["G1"])
    assert verdict.state == "fail" and broken in verdict.reproduce


def test_the_fixture(inference_conformance, correct, reference):
    asked = {"only": ["G4"], "part": "alone", "token": TOKEN}
    inference_conformance([correct], model=reference, **asked)
    with pytest.raises(pytest.fail.Exception, match="G4 log-probability semantics"):
        inference_conformance([correct], model=reference, tolerance=-1.0, **asked)


@pytest.mark.long
def test_the_example_keeps_everything(tiny):
    with serving("examples.naive_server", "--model", tiny, *CHANNELS) as server:
        wait_ready(server.url, HANG_S)
        verdicts = check_inference([server.url], tiny)
    assert [verdict.state for verdict in verdicts] == [
        "not declared" if code == "G10" else "pass" for code in CODES
    ], verdicts


@pytest.mark.engines
def test_a_call_that_stays_text_is_noticed(tiny):
    with serving("tests.conformance.silent_about_calls", "--model", tiny) as server:
        wait_ready(server.url, HANG_S)
        (verdict,) = check_inference([server.url], tiny, only=["G9"])
    assert verdict.state == "fail"
    assert verdict.measured == "([], 'stop')" and "'add'" in verdict.expected, verdict


def assert_transformers_keeps(codes: list[str], model: str) -> None:
    small_batch = ["--max-batch-tokens", "64"]  # long prompts are read in pieces
    options = ["--model", model, *small_batch, *CHANNELS]
    with serving("inference_adapters.transformers", *options, environment=PROTECTED) as server:
        wait_ready(server.url, HANG_S)
        assert_kept(check_inference([server.url], model, token=TOKEN, updates=UPDATES, only=codes))


@pytest.mark.engines
def test_the_transformers_adapter_keeps_content_and_what_is_in_flight(tiny):
    assert_transformers_keeps(["G1", "G2"], tiny)


@pytest.mark.long
@pytest.mark.parametrize("code", sorted(set(CODES) - {"G1", "G2"}, key=CODES.index))
def test_the_transformers_adapter_keeps_everything(tiny, code):
    assert_transformers_keeps([code], tiny)


@pytest.mark.long
def test_the_transformers_adapter_with_a_head_of_its_own(tmp_path):
    assert_transformers_keeps(CODES, make_tiny_model(tmp_path, tied=False))


@pytest.mark.long
@pytest.mark.parametrize("code", CODES)
def test_the_transformers_adapter_with_recurrent_layers(tmp_path, code):
    assert_transformers_keeps([code], make_hybrid_model(tmp_path))
