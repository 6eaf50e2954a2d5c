"""Where a server finds its token, and that its command line is not the place."""

import argparse

import pytest

from contracts.conformance.inference.command import add_inference
from contracts.support.token import TOKEN_VARIABLE, TokenError, token_of
from inference_adapters.serve import arguments
from tests.inference_adapters.servers import contract, serving, wait_ready


def kit_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_inference(parser)
    return parser


@pytest.mark.parametrize("given", [["--token", "s3cret"], ["--token=s3cret"], ["--token"]])
@pytest.mark.parametrize("parser", [arguments("a server"), kit_arguments()], ids=["server", "kit"])
def test_a_token_on_a_command_line_is_refused_in_one_line(parser, given, capsys):
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(given)
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "s3cret" not in err
    assert "set PIPELINERL_TOKEN, or give --token-file PATH" in err


def test_a_server_reads_its_token_from_a_file(tmp_path):
    file = tmp_path / "token"
    file.write_text("of-the-file\n")
    file.chmod(0o600)
    options = ["--token-file", str(file)]
    with serving("inference_adapters.scripted", *options, environment={TOKEN_VARIABLE: "other"}) as server:
        wait_ready(server.url)
        assert contract(server.url, "of-the-file")["contract"] == 2


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        ("s3cret", 0o644, "chmod 600"),
        ("", 0o600, "not empty"),
        ("two words", 0o600, "without spaces"),
        ("line\nline", 0o600, "printable"),
        ("Schlüssel", 0o600, "ASCII"),
    ],
)
def test_a_file_that_holds_no_good_token_is_refused(tmp_path, content, mode, says):
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(TokenError, match=says):
        token_of(file)


def test_a_file_that_is_not_there_is_refused(tmp_path, monkeypatch):
    with pytest.raises(TokenError, match="no token can be read"):
        token_of(tmp_path / "nothing")
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert token_of(None) is None
