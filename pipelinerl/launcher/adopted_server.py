"""Stands in a run for an inference server that runs already (`inference.urls`), and ends when that is gone.

The launcher starts `python -m pipelinerl.launcher.adopted_server --url URL` in place of a server. So the run
learns that the server is there, or gone, as it does for its own. The server itself is never ended.
"""

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request

from contracts.limits import START_VARIABLE
from contracts.support.messages import one_line
from contracts.support.token import TOKEN_VARIABLE

LOOK_S = 2.0
ANSWER_S = 10.0
SILENT_S = 30.0  # without an answer, after which the server is gone


class SilentError(Exception):
    """The server does not answer; the message says why."""


def run_of(url: str) -> str | None:
    """Returns the run that the server belongs to, or None. Raises SilentError if it does not answer."""
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(f"{url}/contract", headers=headers)
        with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
            return json.load(response)["run"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SilentError(one_line(error)) from None


def watch(url: str, first_wait_s: float) -> str:
    """Returns why the server is gone, once it is. first_wait_s: longest wait for its first answer.

    A server that belonged to a run, and then to none, is another process: it has lost weights and group.
    """
    answered_at = time.monotonic()
    longest_s = first_wait_s
    was_of_run = False
    while True:
        try:
            is_of_run = run_of(url) is not None
        except SilentError as error:
            if time.monotonic() - answered_at > longest_s:
                return f"{url} has not answered for {longest_s:.0f} s: {error}"
        else:
            if was_of_run and not is_of_run:
                return f"{url} was started again"
            was_of_run = is_of_run
            answered_at = time.monotonic()
            longest_s = SILENT_S
        time.sleep(LOOK_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    sys.exit(watch(parser.parse_args().url, float(os.environ.get(START_VARIABLE, SILENT_S))))
