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
from contracts.conformance.tiny_model import make_tiny_model
from contracts.support.token import TOKEN_VARIABLE
from tests.conformance.broken_servers import TOKEN
from tests.conformance.eighths import for_each_eighth
from tests.conformance.kept import assert_kept
from tests.conformance.models import make_scripted_model
from tests.conformance.servers import serving_mutant
from tests.inference_adapters.servers import serving, wait_ready

UPDATES = int(os.environ.get("SOAK_UPDATES", 50))  # of G8

PROTECTED = {TOKEN_VARIABLE: TOKEN}

pytest_plugins = ["contracts.conformance.pytest_plugin"]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory) -> str:
    return make_scripted_model(tmp_path_factory.mktemp("scripted"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def naive(tiny) -> Iterator[str]:
    with serving("examples.naive_server", "--model", tiny) as server:
        wait_ready(server.url, within_s=60)
        yield server.url


def run_here(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_inference(parser)
    options = parser.parse_args(arguments)
    return options.run(options)


def test_the_command_prints_a_table_and_ends_with_0(naive, tiny):
    arguments = ["-m", "contracts.conformance", "inference", "--url", naive, "--model", tiny, "--only", "G3"]
    ended = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert "(depth: default)" in ended.stdout
    (row,) = [line for line in ended.stdout.splitlines() if line.startswith("│ G")]
    assert row.split("│")[2].strip() == "pass"


def test_a_failure_says_what_was_expected_and_how_to_see_it_again(scripted, capfd, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with serving_mutant("OmitsEndOfSequence") as url:
        asked = ["--url", url, "--model", scripted, "--trust-remote-code", "--only", "G9"]
        assert run_here(*asked) == 1
        shown = capfd.readouterr().out
        assert run_here(*asked, "--json") == 1
        report = json.loads(capfd.readouterr().out)
    for part in ("expected:", "end-of-sequence", "reproduce:", "--only G9"):
        assert part in shown
    assert TOKEN not in shown
    assert report["kept"] is False and report["depth"] == "default"
    assert report["guarantees"][0]["verdict"] == "fail"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"--url": "http://127.0.0.1:1"}, "no server at http://127.0.0.1:1"),
        ({"--model": "/nothing"}, "/nothing is not a Hugging Face model directory"),
        ({"--only": "G99"}, "no guarantee G99"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tiny, naive, changes, says, capfd):
    asked = {"--url": naive, "--model": tiny} | changes
    assert run_here(*(word for pair in asked.items() for word in pair)) == 2
    output = capfd.readouterr()
    assert output.out == "" and says in output.err.splitlines()[-1]


def test_a_token_that_is_not_configured_is_not_declared(naive, tiny):
    (verdict,) = check_inference([naive], tiny, only=["G10"])
    assert verdict.state == "not declared"


def test_several_servers_are_one_weight_group(scripted):
    reference = Reference(scripted, trust_remote_code=True)
    with serving_mutant("Correct") as one, serving_mutant("Correct") as two:
        verdicts = check_inference([one, two], reference, token=TOKEN, only=["G2", "G6"])
        assert [verdict.state for verdict in verdicts] == ["pass"] * 2, verdicts
    with serving_mutant("Correct") as one, serving_mutant("LeavesTheTiedHeadStale") as two:
        (verdict,) = check_inference([one, two], reference, token=TOKEN, only=["G1"])
        assert verdict.state == "fail" and two in verdict.reproduce


def test_the_fixture(inference_conformance, naive, tiny):
    inference_conformance([naive], model=tiny, only=["G4", "G6"])
    with pytest.raises(pytest.fail.Exception, match="G4 log-probability semantics"):
        inference_conformance([naive], model=tiny, only=["G4"], tolerance=-1.0)


@pytest.mark.long
def test_the_example_keeps_everything(naive, tiny):
    verdicts = check_inference([naive], tiny)
    assert [verdict.state for verdict in verdicts] == [
        "not declared" if code == "G10" else "pass" for code in CODES
    ], verdicts


@pytest.mark.engines
def test_a_call_that_stays_text_is_noticed(tiny):
    with serving("tests.conformance.silent_about_calls", "--model", tiny) as server:
        wait_ready(server.url, within_s=60)
        (verdict,) = check_inference([server.url], tiny, only=["G9"])
    assert verdict.state == "fail"
    assert verdict.measured == "([], 'stop')" and "'add'" in verdict.expected, verdict


def assert_transformers_keeps(codes: list[str], model: str) -> None:
    small_batch = ["--max-batch-tokens", "64"]  # long prompts are read in pieces
    options = ["--model", model, *small_batch]
    with serving("inference_adapters.transformers", *options, environment=PROTECTED) as server:
        wait_ready(server.url, within_s=60)
        assert_kept(check_inference([server.url], model, token=TOKEN, updates=UPDATES, only=codes))


@pytest.mark.engines
@pytest.mark.in_turn
@for_each_eighth
def test_the_transformers_adapter_keeps_everything(tiny, codes):
    assert_transformers_keeps(codes, tiny)


@pytest.mark.long
def test_the_transformers_adapter_with_a_head_of_its_own(tmp_path):
    assert_transformers_keeps(CODES, make_tiny_model(tmp_path, tied=False))
