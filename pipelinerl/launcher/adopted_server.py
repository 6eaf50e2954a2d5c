"""Stands in a run for an inference server that runs already (`inference.urls`), and ends when that is silent.

The launcher starts `python -m pipelinerl.launcher.adopted_server --url URL` in place of a server. So the run
learns that the server is there, or gone, as it does for its own. The server itself is never ended.
"""

import argparse
import os
import sys
import time
import urllib.error
import urllib.request

from contracts.limits import START_VARIABLE
from contracts.support.messages import one_line

LOOK_S = 2.0
ANSWER_S = 10.0
SILENT_S = 30.0  # without an answer, after which the server is gone


def why_silent(url: str) -> str | None:
    """Returns why the server does not answer `GET /health`, or None if it does, with any status."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=ANSWER_S):
            return None
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        return one_line(error)


def watch(url: str, first_wait_s: float) -> str:
    """Returns why the server is gone, once it is. first_wait_s: longest wait for its first answer."""
    answered_at = time.monotonic()
    longest_s = first_wait_s
    while True:
        why = why_silent(url)
        now = time.monotonic()
        if why is None:
            answered_at = now
            longest_s = SILENT_S
        elif now - answered_at > longest_s:
            return f"{url} has not answered for {longest_s:.0f} s: {why}"
        time.sleep(LOOK_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    sys.exit(watch(parser.parse_args().url, float(os.environ.get(START_VARIABLE, SILENT_S))))
