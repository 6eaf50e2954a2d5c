"""CPU time of FSDPTrainer's steps on one rank, against a plain loop over the same model, in turn.

python -m benchmarks.trainer [--runs 20] [--sequences 16] [--length 64] [--alike 0] [--profile]

The model has about 10 million parameters. Both score the same sequences, all of one length, and take a
clipped step of AdamW for the same loss. The plain loop runs transformers' own model and holds full logits.
Groups of 8 sequences begin with the same `--alike` tokens, as with a prompt.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.profiler import profile
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from benchmarks.arguments import positive_int, refuse, whole_from
from benchmarks.ratios import ratio_of_medians
from contracts.records import TrainingSequence
from contracts.support.command_line import command_parser
from contracts.support.ports import ReservedPort
from contracts.trainer import OptimizerSpec, PackedBatch, WorkerSpec
from trainer_adapters.fsdp import FSDPTrainer

VOCABULARY = 16_384
OPTIMIZER = OptimizerSpec(lr=1e-5)
WARM_UP = 2
GROUP = 8  # sequences with a common prefix


def make_model(path: Path) -> int:
    """Writes a random model, and returns its number of parameters."""
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(path)
    return model.num_parameters()


def make_sequences(count: int, length: int, alike: int) -> list[TrainingSequence]:
    """Returns random sequences of one length, in groups with a common prefix of `alike` tokens."""
    rng = np.random.default_rng(0)
    token_ids = rng.integers(0, VOCABULARY, (count, length), dtype=np.int32)
    for i, sequence in enumerate(token_ids):
        sequence[:alike] = token_ids[i - i % GROUP, :alike]
    return [
        TrainingSequence(
            rollout_id=str(i),
            group_id=i // GROUP,
            loss_weight=1 / count,
            temperature=1.0,
            token_ids=token_ids[i],
            loss_mask=np.arange(length) > 0,
            behaviour_logprobs=np.full(length, -9.0, np.float32),
            versions=np.zeros(length, np.int32),
            advantages=rng.normal(size=length).astype(np.float32),
        )
        for i in range(count)
    ]


def of_fsdp(path: Path, batch: PackedBatch) -> Callable[[], None]:
    worker = FSDPTrainer()
    with ReservedPort() as port:
        spec = WorkerSpec(model_path=str(path), optimizer=OPTIMIZER, master_port=port.number)
        worker.init_worker(spec)

    def step() -> None:
        scores = worker.forward(batch)
        worker.backward(-(scores.logprobs * batch.advantages * batch.loss_weights).sum())
        worker.step()

    return step


def of_plain_loop(path: Path, batch: PackedBatch) -> Callable[[], None]:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    spec = OPTIMIZER
    optimizer = torch.optim.AdamW(
        model.parameters(), spec.lr, spec.betas, spec.eps, spec.weight_decay, fused=True
    )
    token_ids = batch.token_ids.view(batch.num_sequences, -1)
    weights = (batch.advantages * batch.loss_weights).view_as(token_ids)[:, 1:]

    def step() -> None:
        log_p = model(token_ids, use_cache=False).logits[:, :-1].log_softmax(-1)
        logprobs = log_p.gather(-1, token_ids[:, 1:].unsqueeze(-1)).squeeze(-1)
        (-(logprobs * weights).sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


def cpu_seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    parser = command_parser("benchmarks.trainer", __doc__)
    parser.add_argument("--runs", type=positive_int, default=20)
    parser.add_argument("--sequences", type=positive_int, default=16)
    parser.add_argument("--length", type=positive_int, default=64)
    parser.add_argument(
        "--alike", type=whole_from(0), default=0, help=f"tokens that {GROUP} sequences have in common"
    )
    parser.add_argument(
        "--profile", action="store_true", help="also print the operators of three steps of each"
    )
    options = parser.parse_args()
    if options.alike >= options.length:
        refuse(parser, f"--alike {options.alike}: sequences of {options.length} tokens would all be the same")
    with tempfile.TemporaryDirectory() as folder:
        parameters = make_model(Path(folder))
        batch = PackedBatch.pack(make_sequences(options.sequences, options.length, options.alike))
        works = {
            "FSDPTrainer": of_fsdp(Path(folder), batch),
            "plain loop": of_plain_loop(Path(folder), batch),
        }
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(WARM_UP + options.runs):
        for name in list(works)[:: -1 if number % 2 else 1]:
            times[name].append(cpu_seconds(works[name]))
    print(
        f"{parameters / 1e6:.1f} million parameters, {batch.num_tokens} tokens a step, {options.runs} steps"
    )
    print("| | CPU s a step, median and range |\n|---|---|")
    for name, every in times.items():
        kept = every[WARM_UP:]
        print(f"| {name} | {statistics.median(kept):.3f} ({min(kept):.3f} to {max(kept):.3f}) |")
    fsdp, plain = (times[name][WARM_UP:] for name in works)
    print(f"ratio of the medians: {ratio_of_medians(fsdp, plain)}")
    for name, work in works.items() if options.profile else ():
        with profile() as profiler:
            for _ in range(3):
                work()
        print(
            name,
            profiler.key_averages().table(
                sort_by="self_cpu_time_total", row_limit=30, max_name_column_width=50
            ),
        )


if __name__ == "__main__":
    main()
