"""Texts of options whose names say that they may be secret are left out of what others see."""

from pipelinerl.report.secrets import LEFT_OUT, without_secrets


def config(left_out: str | None = None) -> dict:
    """Returns a configuration with secrets, or with these words in their places."""
    headers = {"Authorization": left_out or "x", "n": 3}
    dsns = [left_out or "a", left_out or "b"]
    return {
        "optimizer": {"lr": 0.1},
        "sampling": {"max_tokens": 16},
        "domain": {"_target_": "my.Domain", "auth": left_out or "abc", "headers": headers, "dsns": dsns},
        "streams": {"url": left_out or "redis://user:pw@host/0", "size": "1 GiB"},
    }


def test_texts_below_a_name_that_may_be_secret_are_left_out():
    assert without_secrets(config()) == config(LEFT_OUT)
