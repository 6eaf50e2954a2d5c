"""Texts of options whose names say that they may be secret are left out of what others see."""

from pipelinerl.report.secrets import LEFT_OUT, without_secrets


def test_texts_below_a_name_that_may_be_secret_are_left_out():
    config = {
        "optimizer": {"lr": 0.1},
        "sampling": {"max_tokens": 16},
        "domain": {
            "_target_": "my.Domain",
            "auth": "abc",
            "headers": {"Authorization": "x", "n": 3},
            "dsns": ["a", "b"],
        },
        "streams": {"url": "redis://user:pw@host/0", "size": "1 GiB"},
    }
    assert without_secrets(config) == {
        "optimizer": {"lr": 0.1},
        "sampling": {"max_tokens": 16},
        "domain": {
            "_target_": "my.Domain",
            "auth": LEFT_OUT,
            "headers": {"Authorization": LEFT_OUT, "n": 3},
            "dsns": [LEFT_OUT, LEFT_OUT],
        },
        "streams": {"url": LEFT_OUT, "size": "1 GiB"},
    }
