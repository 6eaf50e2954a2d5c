"""Held-out success of a run's final checkpoint, by Hugging Face `generate` alone.

    python -m benchmarks.plain_generate runs/latest [--problems 1000]

Nothing of the pipeline takes part but the domain: the checkpoint is loaded with AutoModelForCausalLM, each
problem is sampled once at temperature 1, and the rate is printed beside what the run itself measured.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipelinerl.components import build_domain
from pipelinerl.config import RunConfig, load_config


@torch.no_grad()
def success(config: RunConfig, checkpoint: Path, problems: int) -> float:
    domain = build_domain(config)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
    solved = 0
    for start in range(0, problems, 100):
        batch = [domain.heldout_problem(i) for i in range(start, min(start + 100, problems))]
        prompts = tokenizer.apply_chat_template(
            [p.messages for p in batch],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
            padding=True,
        )
        answers = model.generate(
            **prompts, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=config.sampling.max_tokens
        )
        texts = tokenizer.batch_decode(answers[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
        solved += sum(domain.score(text, p) >= 0.99 for text, p in zip(texts, batch, strict=True))
    return solved / problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--problems", type=int, default=1000)
    options = parser.parse_args()
    torch.manual_seed(0)
    rate = success(
        load_config(options.run_dir), options.run_dir / "checkpoints" / "final", options.problems
    )
    recorded = json.loads((options.run_dir / "summary.json").read_text())["heldout_success_end"]
    print(f"plain generate: {rate:.3f} of {options.problems} problems; in the run: {recorded:.3f}")


if __name__ == "__main__":
    main()
