"""Translates the adapter's command line to SGLang's. Some options are fixed; others are passed through."""

import argparse
import os
import secrets
from dataclasses import dataclass

import torch
from transformers import AutoConfig

from inference_adapters.plain_weights import DRAFTS, SCALES, check_plain_weights
from inference_adapters.sglang.decided import check_model
from inference_adapters.tokenizer_mixin import check_model_directory

SPARE = 8  # tokens of a context that SGLang reserves
DECIDED = {  # option that the contract fixes, or a prefix of such options -> reason
    "--model-path": "it is --model here",
    "--api-key": "set PIPELINERL_TOKEN; SGLang itself is reached through this server alone",
    "--admin-api-key": "set PIPELINERL_TOKEN; SGLang itself is reached through this server alone",
    "--skip-tokenizer-init": "SGLang gets and gives token ids",
    "--weight-version": "it is --version here",
    "--data-parallel-size": "start more servers instead (world.servers)",
    "--dp-size": "start more servers instead (world.servers)",
    "--stream-output": "deltas are asked for",
    "--preferred-sampling-params": "a request says how it is sampled",
    "--pipeline-parallel-size": "tensor parallelism alone is proven",
    "--pp-size": "tensor parallelism alone is proven",
    "--attn-dp-size": "tensor parallelism alone is proven",
    "--trust-remote-code": "a model's own code is not run",
    "--nnodes": "a server is on one machine",
    "--config": "give its options one by one",
    "--ssl-": "SGLang is reached through this server alone",
    "--speculative-": DRAFTS,
    "--enable-multi-layer-eagle": DRAFTS,
    "--decoupled-spec-": DRAFTS,
    "--uno-lora-path": DRAFTS,
    "--quantization": SCALES,
    "--quantization-param-path": SCALES,
    "--quantize-and-serve": SCALES,
    "--modelopt-": SCALES,
    "--rl-quant-profile": SCALES,
    "--kv-cache-dtype": SCALES,
    "--json-model-override-args": "the model's config.json decides",
}


@dataclass(frozen=True)
class Options:
    """The options of the server."""

    model: str
    workers: int  # processes of tensor parallelism
    context: int  # maximum of prompt + completion, in tokens
    vocabulary: int
    others: tuple[str, ...]  # options that are passed through to SGLang

    @classmethod
    def of(cls, args: argparse.Namespace, others: list[str]) -> "Options":
        """Checks the command line. Raises ValueError, with a one-line message, if it cannot be served."""
        for option in others:
            if why := _decided(option.split("=")[0]):
                raise ValueError(f"{option} cannot be set: {why}")
        check_model_directory(args.model)
        check_plain_weights(args.model)
        check_model(args.model)
        config = AutoConfig.from_pretrained(args.model).get_text_config()
        context = min(config.max_position_embeddings, args.context_length or config.max_position_embeddings)
        return cls(args.model, args.tensor_parallel_size, context, config.vocab_size, tuple(others))

    def for_sglang(self, version: int) -> list[str]:
        """Returns the command line of SGLang's server. `version`: version of its initial weights."""
        decided = {
            "--model-path": self.model,
            "--tensor-parallel-size": self.workers,
            "--context-length": self.context + SPARE,
            "--weight-version": version,
            "--random-seed": secrets.randbits(31),  # servers with the same seed would sample the same tokens
            "--stream-interval": 8,
            "--log-level": "warning",
        }
        # With overlapped steps, a pause between two steps would give the overlapped token a wrong version.
        flags = ["--skip-tokenizer-init", "--disable-overlap-schedule", "--incremental-streaming-output"]
        flags.append("--enable-metrics")
        here = [] if torch.cuda.is_available() else ["--device", "cpu", "--sleep-on-idle"]
        return [*(str(part) for pair in decided.items() for part in pair), *flags, *here, *self.others]


def environment(workers: int) -> dict[str, str]:
    """Returns SGLang's environment variables for this machine. OMP_NUM_THREADS sets its threads."""
    if torch.cuda.is_available():
        return {}
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))  # cores of each worker
    bound = os.environ.get("SGLANG_CPU_OMP_THREADS_BIND", "|".join([cores] * workers))
    return {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_CPU_OMP_THREADS_BIND": bound}


def _decided(option: str) -> str | None:
    """Returns the reason why an option is fixed, or None. SGLang accepts unambiguous prefixes of names."""
    if not option.startswith("--"):
        return None
    for name, why in DECIDED.items():
        if name.startswith(option) or (name.endswith("-") and option.startswith(name)):
            return why
    return None


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="directory of a Hugging Face causal language model")
    parser.add_argument(
        "--tensor-parallel-size", "--tp-size", "--tp", type=int, default=1, help="SGLang's workers"
    )
    parser.add_argument(
        "--context-length", type=int, help="longest prompt + completion; the model's, or less"
    )
