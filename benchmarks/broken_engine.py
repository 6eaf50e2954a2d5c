"""A scripted server whose health and weight updates are good and whose completions are not.

python -m benchmarks.broken_engine --port 8001 --answers error
"""

import argparse
from collections.abc import AsyncGenerator

from contracts.inference import SamplingParameters, TokenDelta
from inference_adapters.scripted import EOS, ScriptedEngine
from inference_adapters.serve import arguments, run


class BrokenEngine(ScriptedEngine):
    """The scripted engine with broken completions.

    answers: `error` responds with status 500; `corrupt` responds with an invalid log-probability. Both are
    immediate.
    """

    def __init__(self, options: argparse.Namespace):
        super().__init__()
        self._answers = options.answers

    async def _generate(
        self, prompt: list[int], sampling: SamplingParameters
    ) -> AsyncGenerator[TokenDelta, None]:
        if self._answers == "error":
            raise RuntimeError("this engine is broken")
        yield TokenDelta([EOS], [1.0], [self._version], "stop", ())


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--answers", choices=["error", "corrupt"], default="error")
    options = parser.parse_args()
    run(BrokenEngine(options), options)
