"""One run of TRL's GRPOTrainer. It runs in TRL's own environment, and imports nothing of this project.

python benchmarks/trl/grpo.py SETTINGS.json

Each answer's exact text decides its reward. A line of `out` says when a batch was sampled and how it was
rewarded; the last line says what the process cost.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def main(path: str) -> None:
    """Trains, with the settings of the file."""
    given = json.loads(Path(path).read_text())
    torch.set_num_threads(given["threads"])
    with Path(given["out"]).open("w", buffering=1) as out:
        trainer = GRPOTrainer(
            model=given["model"],
            args=config(given),
            train_dataset=Dataset.from_list(given["problems"]),
            reward_funcs=rewarding(out),
        )
        put(out, began=time.time(), cpu_s=cpu_s())
        trainer.train()
        put(out, ended=time.time(), cpu_s=cpu_s())


def config(given: dict) -> GRPOConfig:
    """Returns the configuration: this run's values, and TRL's defaults for the rest."""
    return GRPOConfig(
        output_dir=given["directory"],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=given["batch_size"],
        num_generations=given["group_size"],
        max_completion_length=given["max_tokens"],
        max_steps=given["steps"],
        learning_rate=given["lr"],
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=given["warmup_steps"],
        adam_beta1=given["betas"][0],
        adam_beta2=given["betas"][1],
        seed=given["seed"],
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=given["steps"],
        **given["more"],
    )


def rewarding(out):
    """Returns the reward function. TRL calls it with every batch as soon as it is sampled."""

    def exact(completions, answer, completion_ids, **_):
        texts = [completion[0]["content"] for completion in completions]
        rewards = [float(text == right) for text, right in zip(texts, answer, strict=True)]
        put(out, at=time.time(), rewards=rewards, lengths=[len(ids) for ids in completion_ids], cpu_s=cpu_s())
        return rewards

    return exact


def put(out, **line) -> None:
    out.write(json.dumps(line) + "\n")


def cpu_s() -> float:
    """Returns the CPU seconds of this process so far."""
    times = os.times()
    return times.user + times.system


if __name__ == "__main__":
    main(sys.argv[1])
