"""The process of one part: `python -m benchmarks.gpu_check.inside PART MODULE:FUNCTION RESULT_FILE [--dry]`.

`running` starts it, so that a part that crashes, hangs or leaves CUDA broken takes no other with it.
"""

import argparse
import importlib
import os
import time
import traceback
from pathlib import Path

from benchmarks.gpu_check.outcomes import FailedError, Outcome, SkippedError, write_outcome
from contracts.support.messages import one_line


def run(part: str, function: str, dry: bool) -> Outcome:
    """Runs the function of a part, and returns how it ended."""
    module, _, name = function.partition(":")
    began = time.monotonic()
    try:
        lines = getattr(importlib.import_module(module), name)(dry)
        state = "pass"
    except SkippedError as error:
        lines = [str(error)]
        state = "skipped"
    except FailedError as error:
        lines = error.lines
        state = "fail"
    except Exception as error:  # a part's own error is its result
        traceback.print_exc()
        lines = [f"{type(error).__name__}: {one_line(error)}"]
        state = "fail"
    return Outcome(part, state, time.monotonic() - began, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part")
    parser.add_argument("function")
    parser.add_argument("result", type=Path)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    write_outcome(options.result, run(options.part, options.function, options.dry))
    os._exit(0)  # a thread may still be in a call of NCCL that does not return


if __name__ == "__main__":
    main()
