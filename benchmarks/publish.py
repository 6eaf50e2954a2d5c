"""How long a publication takes, from the trainer's weights to a server that generates with them.

python -m benchmarks.publish [--rounds 15] [--engine transformers] [--receive paused] [--megabytes 3.6 400]

The weight publisher of a run sends random weights to one real server on this machine, over gloo. Each
publication takes turns with a bare gloo broadcast of as many bytes, in one piece, between two processes that
keep their buffers. Counted is from the call until the server has said that it serves the version.
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.raw_broadcast import raw_broadcast
from benchmarks.servers import started
from contracts.conformance.tiny_model import make_tiny_model
from contracts.inference import Parameter
from contracts.records import ServerJoined, WeightsPublished
from contracts.weights import WeightManifest
from pipelinerl.launcher.compose import compose_config
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.launched_servers import LaunchedServers
from pipelinerl.training.ranks import Ranks
from pipelinerl.training.weight_publisher import WeightPublisher, publish

WARM_UP = 3
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
SHAPES = {  # hidden size, layers: of about so many megabytes in float32
    3.6: (128, 4),
    400: (896, 10),
}
HEADER = (
    "| weights | published, s | raw broadcast, s | raw / published | server's pause, s |\n"
    "|---|---|---|---|---|"
)


class Weights:
    """The part of a trainer that a publication asks for: one rank that holds all weights."""

    def __init__(self, model: Path):
        loaded = Qwen2ForCausalLM.from_pretrained(model, dtype=torch.float32)
        self.tensors = {name: p.detach() for name, p in loaded.named_parameters()}
        parameters = [Parameter(name=n, dtype="float32", shape=tuple(t.shape)) for n, t in self.tensors.items()]
        self.manifest = WeightManifest(tuple(parameters), dict(loaded.all_tied_weights_keys))

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.tensors.items()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--receive", choices=["paused", "staged"], default="paused")
    parser.add_argument("--megabytes", type=float, nargs="+", choices=SHAPES, default=list(SHAPES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(HEADER)
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), megabytes, options.receive, options.rounds)


def measure(folder: Path, megabytes: float, receive: str, rounds: int) -> None:
    """Prints the table's row of one model."""
    model = folder / "model"
    make_model(model, *SHAPES[megabytes])
    weights = Weights(model)
    size = weights.manifest.total_bytes
    published: list[WeightsPublished] = []
    seconds: list[float] = []
    raw: list[float] = []
    with publisher(folder, model, weights, receive) as sender, raw_broadcast(size, size, fresh=False) as broadcast:
        for version in range(WARM_UP + rounds):
            raw.append(broadcast())
            began = time.perf_counter()
            published.append(publish(weights, Ranks(0, 1, 60), sender, version))
            seconds.append(time.perf_counter() - began)
    seconds, raw, published = seconds[WARM_UP:], raw[WARM_UP:], published[WARM_UP:]
    ratios = [of_raw / whole for of_raw, whole in zip(raw, seconds, strict=True)]
    pauses = [one.paused_s for one in published]
    cells = [f"{size / 1e6:.1f} MB", *map(spread, (seconds, raw, ratios, pauses))]
    print(f"| {' | '.join(cells)} |", flush=True)
    phases = {name: statistics.median(p.phases[name] for p in published) for name in published[0].phases}
    print(f"{ {name: round(s, 4) for name, s in phases.items()} }", file=sys.stderr)


@contextlib.contextmanager
def publisher(folder: Path, model: Path, weights: Weights, receive: str) -> Iterator[WeightPublisher]:
    """Yields the publisher of a run that has one server, which is ready."""
    command = [sys.executable, "-m", "inference_adapters.transformers", "--num-blocks", "64"]
    with started(command, str(model), ENVIRONMENT) as url:
        streams = FileStreams(folder / "streams")
        joined = ServerJoined(number=1, name="server-0", url=url, node="here", engine="transformers")
        streams.writer("launcher_events").append(joined)
        config = compose_config([f"inference.receive={receive}"])
        sender = WeightPublisher(config, LaunchedServers(streams), None, weights.manifest, record=print)
        sender.wait_for_servers()
        yield sender
        sender.close()


def make_model(path: Path, hidden: int, layers: int) -> None:
    """Writes a Qwen2 of random weights, with the tokenizer of the tiny one."""
    make_tiny_model(path)
    config = Qwen2Config(
        vocab_size=97 if hidden < 256 else 8192,
        hidden_size=hidden,
        intermediate_size=hidden * 3,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=0,
        pad_token_id=1,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(path)


def spread(values: list[float]) -> str:
    """Returns the median, and the range in which all values lie."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
