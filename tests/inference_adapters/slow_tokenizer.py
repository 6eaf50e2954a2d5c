"""A scripted server that reads a long text only once it has been asked for its contract meanwhile.

It has few slots, so that a test can take them all.
"""

import threading
from functools import partial

from contracts.inference import ProcessFigures
from inference_adapters import generation_routes
from inference_adapters.completion_slots import CompletionSlots
from inference_adapters.serve import arguments, run
from tests.inference_adapters.held_engine import HeldEngine

LONG = 6000  # characters
SLOTS = 4


class SlowTokenizer(HeldEngine):
    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def process(self) -> ProcessFigures:
        self.asked.set()
        return super().process()

    def encode(self, text: str) -> list[int]:
        if len(text) >= LONG:
            self.asked.clear()
            self.asked.wait()  # others are answered meanwhile
        return super().encode(text)


if __name__ == "__main__":
    generation_routes.CompletionSlots = partial(CompletionSlots, SLOTS)
    run(SlowTokenizer(), arguments(__doc__).parse_args())
