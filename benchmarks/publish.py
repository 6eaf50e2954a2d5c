"""How long a publication takes, from the trainer's weights to a server that generates with them.

python -m benchmarks.publish [--rounds 10] [--megabytes 3.6 400] [key=value ...]

The weight publisher of a run sends random weights to a server of the transformers adapter on this machine,
over gloo, or through a directory in memory (`shared`). Each publication takes turns with a bare gloo
broadcast of as many bytes, in one piece, between two processes that keep their buffers. Counted is from the
call until the server has said that it serves them.
CPU seconds are means over the rounds, of all processes together, and of the client that makes requests too.
"""

import contextlib
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.arguments import composed, positive_int
from benchmarks.completions_load import keep_generating
from benchmarks.ratios import ratio_of_medians
from benchmarks.raw_broadcast import raw_broadcast
from benchmarks.servers import started
from contracts.conformance.tiny_model import make_tiny_model
from contracts.inference import Parameter
from contracts.records import ServerJoined, WeightsPublished
from contracts.support.addresses import LOOPBACK
from contracts.support.command_line import command_parser
from contracts.weights import WeightManifest
from extensions.stored_weights.store_location import STORE_VARIABLE
from extensions.stored_weights.transport import Shared
from pipelinerl.config import RunConfig
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.launched_servers import LaunchedServers
from pipelinerl.training.publishing.base import PublisherContext, WeightPublisher, publish
from pipelinerl.training.ranks import Ranks
from pipelinerl.weight_transport import transport_of

WARM_UP = 3
CLIENT_STARTS_WITHIN_S = 120
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
SERVER = [sys.executable, "-m", "inference_adapters.transformers", "--num-blocks", "256"]
SERVER += ["--weight-channels", "extensions.stored_weights.channels.StoredChannels"]
SHAPES = {  # vocabulary, hidden size and layers, by approximate megabytes in float32
    3.6: (355, 128, 4),
    400: (6720, 896, 9),
}
SHARED_MEMORY = Path("/dev/shm")
VARIANTS = [  # transport, receive mode, and requests in flight
    ("group", "staged", 0),
    ("group", "paused", 0),
    ("group", "staged", 8),
    ("shared", "staged", 0),
]
HEADER = (
    "| weights | transport | receive | requests | published, s | open, send, confirm, s | raw broadcast, s "
    "| raw / published | CPU s: published, raw | pause, s |\n|---|---|---|---|---|---|---|---|---|---|"
)


class Weights:
    """The methods of a trainer that a publication needs: one rank that holds all weights."""

    def __init__(self, model: Path):
        loaded = Qwen2ForCausalLM.from_pretrained(model, dtype=torch.float32)
        self.tensors = {name: p.detach() for name, p in loaded.named_parameters()}
        parameters = (
            Parameter(name=name, dtype="float32", shape=tuple(tensor.shape))
            for name, tensor in self.tensors.items()
        )
        self.manifest = WeightManifest(tuple(parameters), dict(loaded.all_tied_weights_keys))

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.tensors.items()


def main() -> None:
    parser = command_parser("benchmarks.publish", __doc__)
    parser.add_argument("--rounds", type=positive_int, default=10)
    parser.add_argument("--megabytes", type=float, nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    configs = {
        variant: composed(
            parser, [f"weights={variant[0]}", f"inference.receive={variant[1]}", *options.settings]
        )
        for variant in VARIANTS
    }
    torch.set_num_threads(1)
    print(HEADER)
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            make_model(model, *SHAPES[megabytes])
            with started(SERVER, str(model), ENVIRONMENT) as url:
                for variant, config in configs.items():
                    cells = measure(url, model, config, variant[-1], options.rounds)
                    print(f"| {megabytes:g} MB | {' | '.join(map(str, [*variant, *cells]))} |", flush=True)


def measure(url: str, model: Path, config: RunConfig, requests: int, rounds: int) -> list[str]:
    """Returns the cells of the table's row."""
    weights = Weights(model)
    size = weights.manifest.total_bytes
    published: list[WeightsPublished] = []
    raw: list[float] = []
    cpu: dict[str, list[float]] = {"published": [], "raw": []}
    with (
        publisher(url, weights, config) as sender,
        raw_broadcast(size, size, fresh=False) as broadcast,
        load(url, model, requests),
    ):
        for version in range(WARM_UP + rounds):
            with counted(cpu["raw"]):
                raw.append(broadcast())
            with counted(cpu["published"]):
                published.append(publish(weights, Ranks(0, 1, 60), sender, version))
    for values in (raw, published, *cpu.values()):
        del values[:WARM_UP]
    seconds = [one.seconds for one in published]
    phases = [
        statistics.median(one.phases[name] for one in published) for name in ("open", "send", "confirm")
    ]
    return [
        spread(seconds),
        ", ".join(f"{phase:.3f}" for phase in phases),
        spread(raw),
        ratio_of_medians(raw, seconds),
        ", ".join(f"{statistics.mean(values):.2f}" for values in cpu.values()),
        spread([one.paused_s for one in published]),
    ]


@contextlib.contextmanager
def counted(cpu: list[float]) -> Iterator[None]:
    """Appends the CPU seconds that this process and its children use during the block."""
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]

    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in family)

    before = used()
    yield
    cpu.append(used() - before)


@contextlib.contextmanager
def publisher(url: str, weights: Weights, config: RunConfig) -> Iterator[WeightPublisher]:
    """Yields the publisher of a run whose only server is this one."""
    memory = SHARED_MEMORY if isinstance(transport_of(config), Shared) else None
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=memory) as store:
        streams = FileStreams(folder)
        joined = ServerJoined(number=1, name="server-0", url=url, node="here", engine="transformers")
        streams.writer("launcher_events").append(joined)
        context = PublisherContext(
            run_dir=Path(folder),
            launched=LaunchedServers(streams),
            token=None,
            manifest=weights.manifest,
            record=print,
            needs={},
            address=LOOPBACK,
            buffers=dict,
        )
        os.environ[STORE_VARIABLE] = store
        sender = transport_of(config).publisher(context)
        sender.wait_for_servers()
        yield sender
        sender.close()


@contextlib.contextmanager
def load(url: str, model: Path, requests: int) -> Iterator[None]:
    """Keeps `requests` requests of the server in flight, from another process."""
    if not requests:
        yield
        return
    spawn = multiprocessing.get_context("spawn")
    began = spawn.Event()
    client = spawn.Process(target=keep_generating, args=(url, str(model), requests, began), daemon=True)
    client.start()
    try:
        # Starting takes seconds of processor time, which would count as the publication's.
        if not began.wait(CLIENT_STARTS_WITHIN_S):
            raise RuntimeError("the client that makes requests does not start")
        yield
    finally:
        client.kill()
        client.join()


def make_model(path: Path, vocabulary: int, hidden: int, layers: int) -> None:
    """Writes a Qwen2 with random weights and the tiny model's tokenizer."""
    make_tiny_model(path)
    Qwen2ForCausalLM(model_config(vocabulary, hidden, layers)).save_pretrained(path)


def model_config(vocabulary: int, hidden: int, layers: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=vocabulary,
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


def spread(values: list[float]) -> str:
    """Returns the median, and the range of all values."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
