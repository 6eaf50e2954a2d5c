"""Audits honest volunteers of many kinds, and counts what would be refused.

    python -m benchmarks.volunteers.honest

Each kind is a real server of the demo's model, whose completions are audited in batches of another size. It
prints a row for each: tasks, those refused, tokens, near misses, the largest gap, the largest differences of
commitments, and the CPU milliseconds of the audit of a completion.
"""

import asyncio
import os
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import numpy as np
import torch
from transformers import AutoTokenizer

from benchmarks.volunteers.cheater import MODEL, TOKENIZER
from contracts.commitments import Difference
from contracts.conformance.tiny_model import make_tiny_model
from contracts.end_tokens import end_tokens_in
from contracts.inference import SamplingParameters
from contracts.support.command_line import command_parser
from extensions.volunteers.gateway import checks
from extensions.volunteers.gateway.models import AuditModels
from extensions.volunteers.gateway.numerics import FLOAT32, HALF, Numerics
from extensions.volunteers.gateway.prefill import Prefilled, prefill
from extensions.volunteers.gateway.queue import Wanted
from extensions.volunteers.join.local_server import LocalServer
from extensions.volunteers.messages import Made, Member, Task

MEMBERS = 8  # of a task


@dataclass(frozen=True)
class Kind:
    """together: tasks that a volunteer makes at one time, so that its batches have other sizes."""

    name: str
    tasks: int
    together: int
    audited: int  # completions of a batch of the audit
    threads: int = 1
    dtype: str = "float32"
    attention: str = "sdpa"  # of the audit
    tokens: int = 16
    untrained: bool = False  # a model that ends an answer at random, and whose tokens are alike
    options: tuple[str, ...] = ()

    @property
    def allowed(self) -> Numerics:
        return FLOAT32 if self.dtype == "float32" else HALF


KINDS = (
    Kind("one task at a time, audited one by one", 250, 1, 1),
    Kind("8 tasks at a time, audited by 64", 500, 8, 64),
    Kind("8 tasks at a time, two threads", 250, 8, 64, threads=2),
    Kind("8 tasks at a time, batches of 8 tokens", 250, 8, 32, options=("--max-batch-tokens=8",)),
    Kind("small cache: requests are computed again", 250, 8, 64, options=("--num-blocks=16",)),
    Kind("audited with eager attention, by 7", 250, 8, 7, attention="eager"),
    Kind("bfloat16, audited in float32", 500, 8, 64, dtype="bfloat16"),
    Kind("untrained model, 128 tokens", 50, 4, 32, tokens=128, untrained=True),
    Kind("untrained model, 128 tokens, bfloat16", 50, 4, 32, tokens=128, untrained=True, dtype="bfloat16"),
)


def tasks_of(kind: Kind, seed: int) -> list[Task]:
    """Returns tasks of random sums; for the untrained model of random ids."""
    source = random.Random(seed)
    tasks = []
    for _ in range(kind.tasks):
        members = []
        for _ in range(MEMBERS):
            question = f"{source.randrange(100)} {source.choice('+-')} {source.randrange(100)} ="
            chat = [{"role": "user", "content": question}]
            prompt = TOKENIZER.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            if kind.untrained:
                prompt = [source.randrange(3, 90) for _ in range(24)]
            members.append(Member(prompt, source.randbytes(32).hex()))
        tasks.append(Task("0" * 32, "run", 0, 1.0, kind.tokens, [], members, 600.0))
    return tasks


async def made_by(kind: Kind, model: Path, tasks: list[Task]) -> list[list[Made]]:
    os.environ["OMP_NUM_THREADS"] = str(kind.threads)
    with tempfile.TemporaryDirectory() as scratch:
        options = ["--dtype", kind.dtype, *kind.options]
        module = "inference_adapters.transformers"
        server = LocalServer(sys.executable, module, model, Path(scratch), options, commits=True)
        await server.start(["http://127.0.0.1"])
        try:
            found = []
            for begin in range(0, len(tasks), kind.together):
                some = tasks[begin : begin + kind.together]
                found += await asyncio.gather(*(server.make(task) for task in some))
            return found
        finally:
            await server.close()


def audited(kind: Kind, path: Path, tasks: list[Task], made: list[list[Made]]) -> str:
    model = AuditModels(str(path), "float32", "cpu", 1).load()
    model.set_attn_implementation(kind.attention)
    ends = end_tokens_in(str(path), AutoTokenizer.from_pretrained(path))
    vocabulary = model.get_input_embeddings().num_embeddings
    hidden = model.get_output_embeddings().in_features
    pairs = [
        (m, one)
        for task, each in zip(tasks, made, strict=True)
        for m, one in zip(task.members, each, strict=True)
    ]
    rows: list[Prefilled] = []
    began = process_time()
    for begin in range(0, len(pairs), kind.audited):
        some = pairs[begin : begin + kind.audited]
        sequences = [(m.prompt, one.token_ids) for m, one in some]
        rows += prefill(model, sequences, [1.0] * len(some), [one.proofs for _, one in some])
    seconds = process_time() - began
    refused = tokens = near = 0
    largest = 0.0
    chunks: list[Difference] = []
    each_row = iter(rows)
    for task, each in zip(tasks, made, strict=True):
        wanted = [
            Wanted(m.prompt, SamplingParameters(task.max_tokens), bytes.fromhex(m.key)) for m in task.members
        ]
        failed = checks.schema(wanted, each, vocabulary, hidden) or checks.termination(wanted, each, ends)
        of_task: list[Prefilled] = []
        for place, (one, completion) in enumerate(zip(wanted, each, strict=True)):
            row = next(each_row)
            of_task.append(row)
            gap = checks.gaps(one, row, kind.allowed)
            failed = failed or checks.randomness(place, gap, kind.allowed)
            failed = failed or checks.logprobs(place, completion, row, kind.allowed)
            tokens += len(gap)
            near += checks.count_near(gap)
            largest = max(largest, float(gap.max()))
        chunks += checks.differences_of(of_task)
        refused += failed is not None
    cost = 1e3 * seconds / len(pairs)
    exponents = [each.exponents for each in chunks]
    mantissas = [each.mantissa for each in chunks]
    shares = f"{np.mean(exponents):.2%}, {max(exponents):.1%}"
    commitments = f"{shares}; {np.mean(mantissas):.2g}, {max(mantissas):.2g}"
    counts = f"{kind.name} | {kind.tasks} | {refused} | {tokens} | {near} | {largest:.2g}"
    return f"| {counts} | {commitments} | {cost:.2f} |"


def main() -> None:
    command_parser("benchmarks.volunteers.honest", __doc__).parse_args()
    torch.set_num_threads(1)
    names = "volunteer and audit | tasks of 8 | refused | tokens | near misses | largest gap"
    print(f"| {names} | exponents of chunks, mean and largest; mantissas | CPU ms |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        untrained = Path(make_tiny_model(Path(scratch)))
        for seed, kind in enumerate(KINDS):
            model = untrained if kind.untrained else MODEL
            tasks = tasks_of(kind, seed)
            print(audited(kind, model, tasks, asyncio.run(made_by(kind, model, tasks))), flush=True)


if __name__ == "__main__":
    main()
