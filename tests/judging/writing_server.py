"""A server whose model writes what a test gives it, and which keeps the seed of every request.

    python -m tests.judging.writing_server --answers FILE --seeds FILE --port 8001

answers: a JSON list of texts. seeds: a file to which a line is added for each request that was answered.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from inference_adapters.scripted import ScriptedEngine
from inference_adapters.serve import arguments, run


class WritingEngine(ScriptedEngine):
    def __init__(self, answers: list[str], seeds: Path):
        super().__init__()
        self._answers = answers
        self._seeds = seeds

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._answers[sum(token_ids) % len(self._answers)]

    async def _generate(self, prompt, sampling):
        async for delta in super()._generate(prompt, sampling):
            if delta.finish_reason:
                with self._seeds.open("a") as file:
                    file.write(f"{sampling.seed}\n")
            yield delta


if __name__ == "__main__":
    parser = arguments("Serve given answers.")
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--seeds", type=Path, required=True)
    options = parser.parse_args()
    run(WritingEngine(json.loads(options.answers.read_text()), options.seeds), options)
