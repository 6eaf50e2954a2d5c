"""Writes the dataset card of exported rollouts, which names the splits and explains the columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import DatasetCard, DatasetCardData

from contracts.support.messages import printable


class Split(NamedTuple):
    name: str  # name of the split and its directory
    rows: int
    cut: bool  # True if retention has deleted the oldest records of its stream


COLUMNS = {
    "run": "random id of the trainer's session",
    "rollout_id, group_id": "ids of the rollout and of its group; evaluations number their groups separately",
    "problem_id, domain": "the problem",
    "draw": "number of the sampler's draw; -1 for held-out problems",
    "status": "`ok`, `truncated`, or `failed:` and the reason",
    "reward": "the total reward; 0 if the rollout failed",
    "success": "whether it solved the problem; null if it failed",
    "expected": "the right answer, if the domain names one",
    "reason": "why it has this reward, or why it failed; null in records of earlier code",
    "outcome": "the group's outcome: `trained`, `dropped` or `in_flight`; null for held-out problems",
    "outcome_reason": "why the group was dropped",
    "trained_version": "weight version made by the step that trained on the group",
    "undone_versions": "versions whose training on the group was undone when the run was resumed",
    "first_version, last_version": "the oldest and the newest weights that sampled a token; null without any",
    "sampled_tokens": "number of tokens that servers sampled, over all completions",
    "started_at, finished_at": "unix seconds",
    "reward_components": "a list of `name` and `value`, which add up to the reward; may be empty",
    "turn_rewards": "the part of the reward earned by each completion itself",
    "metrics": "a list of `name` and `value`",
    "completions": "one per request; `token_ids` and `logprobs` (in nats) have the same length; `spans` give "
    "the weight version of each range of tokens; `prompt` and `text` are decoded with special tokens, and "
    "null if the run has no tokenizer; invalid bytes become U+FFFD",
}
TEXT = """\
# Rollouts of `{run}`

{splits}

```python
from datasets import load_dataset

rollouts = load_dataset("DIRECTORY")  # of this file; or pandas.read_parquet("DIRECTORY/train")
```

Tokens are recorded as the servers returned them. Outcomes are those at the time of the export.

| column | meaning |
|---|---|
{columns}
"""


def write_dataset_card(path: Path, run: str, splits: Sequence[Split], decoded: bool) -> None:
    """Writes the card. decoded: True if the completions have text."""
    name = printable(run)
    data_files = [{"split": split.name, "path": f"{split.name}/*.parquet"} for split in splits]
    data = DatasetCardData(
        pretty_name=f"Rollouts of {name}",
        tags=["reinforcement-learning", "pipelinerl"],
        task_categories=["text-generation"] if decoded else None,
        configs=[{"config_name": "default", "data_files": data_files}],
    )
    columns = "\n".join(f"| {names} | {meaning} |" for names, meaning in COLUMNS.items())
    text = TEXT.format(run=name, splits="\n".join(map(_sentence, splits)), columns=columns)
    DatasetCard(f"---\n{data.to_yaml()}\n---\n\n{text}").save(path)


def _sentence(split: Split) -> str:
    cut = "; the oldest records were deleted (`streams.keep_bytes`)" if split.cut else ""
    return f"* `{split.name}`: {split.rows} rollouts{cut}"
