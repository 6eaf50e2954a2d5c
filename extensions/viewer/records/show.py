"""Formats records as readable text. Used by `python -m extensions.viewer.records show`."""

import time
from enum import Enum
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer

from contracts.records import Completion, MicroBatchRow, Record, Rollout
from contracts.support.messages import printable
from pipelinerl.config import saved_config

NOT_RECORDED = "not recorded"
HEAD = ("schema", "at")  # fields that every record or event has


def describe(record: Record, tokenizer: Tokenizer | None = None) -> str:
    match record:
        case Rollout():
            return describe_rollout(record, tokenizer)
        case MicroBatchRow():
            return describe_row(record)
    fields = ((name, getattr(record, name)) for name in record.__struct_fields__ if name not in HEAD)
    text = "  ".join(f"{name}={plain(value)}" for name, value in fields)
    at = getattr(record, "at", 0.0)
    return f"{type(record).__name__:16} {text}" + (
        time.strftime("  at %F %T", time.localtime(at)) if at else ""
    )


def concerns_group(record: Record, group_id: int) -> bool:
    match record:
        case MicroBatchRow():
            return group_id in record.group_ids or any(
                sequence.group_id == group_id for rank in record.micro_batches for sequence in rank
            )
        case msgspec.Struct(group_ids=group_ids):
            return group_id in group_ids
        case msgspec.Struct(group_id=one):
            return one == group_id
    return False


def describe_rollout(rollout: Rollout, tokenizer: Tokenizer | None) -> str:
    """Returns what the record says, with the text of its completions if there is a tokenizer."""
    components = "  ".join(f"{name} {value:g}" for name, value in rollout.reward_components.items())
    versions = ", ".join(map(str, rollout.versions)) or "none"
    head = (
        f"── rollout {rollout.rollout_id}  group {rollout.group_id}  {printable(rollout.domain)} "
        f"{printable(rollout.problem_id)}\n"
        f"   status {rollout.status}  reward {rollout.reward:g}{f' ({components})' if components else ''}  "
        f"weight versions {versions}  {rollout.finished_at - rollout.started_at:.2f} s"
    )
    if metrics := "  ".join(f"{name} {value:g}" for name, value in rollout.metrics.items() if value):
        head += f"\n   metrics {metrics}"
    is_recorded = rollout.reason is not None
    expected = rollout.expected or ("" if is_recorded else None)
    head += f"\n   expected {indented(expected)}\n   reason {indented(rollout.reason)}"
    bodies = [describe_completion(completion, tokenizer) for completion in rollout.completions]
    return "\n".join([head, *bodies, ""])


def indented(text: str | None) -> str:
    """Returns recorded text with its further lines indented. None: earlier code did not record it."""
    return NOT_RECORDED if text is None else text.replace("\n", "\n      ") or "none"


def describe_completion(completion: Completion, tokenizer: Tokenizer | None) -> str:
    spans = "  ".join(f"v{span.version}: {span.start}–{span.end}" for span in completion.spans)
    fields = f"; with {', '.join(completion.token_fields)}" if completion.token_fields else ""
    return (
        f"   prompt ({len(completion.prompt_token_ids)} tokens)\n"
        f"{text_of(completion.prompt_token_ids, tokenizer)}\n"
        f"   completion ({len(completion.token_ids)} tokens, {completion.finish_reason}; {spans}{fields})\n"
        f"{text_of(completion.token_ids, tokenizer)}"
    )


def text_of(token_ids: np.ndarray, tokenizer: Tokenizer | None) -> str:
    """Returns the tokens as indented text, with control characters escaped."""
    ids = token_ids.tolist()
    text = tokenizer.decode(ids, skip_special_tokens=False) if tokenizer else " ".join(map(str, ids))
    return "\n".join(f"      {printable(line)}" for line in text.split("\n"))


def describe_row(row: MicroBatchRow) -> str:
    """Returns a row as text. Lags are those of tokens in the loss, relative to the step's initial weights."""
    sequences = [len(rank) for rank in row.micro_batches]
    tokens = [sum(len(sequence.token_ids) for sequence in rank) for rank in row.micro_batches]
    versions = np.concatenate(
        [np.empty(0, np.int32), *(s.versions[s.loss_mask] for rank in row.micro_batches for s in rank)]
    )
    lag = row.step - versions[versions >= 0]
    without = "none of them sampled" if len(versions) else "no token in the loss"
    lag_text = f"lag mean {lag.mean():.2f} max {lag.max()}" if len(lag) else without
    closes = f"  closes the step of groups {plain(row.group_ids)}"
    masked = f"  masked {plain(row.masked)}" if row.masked else ""
    scored = "" if row.reference_version is None else f"  reference version {row.reference_version}"
    return (
        f"step {row.step}  row {row.index}  sequences {plain(sequences)}  tokens {plain(tokens)}  "
        f"in the loss {len(versions)}  {lag_text}{closes if row.closes_step else ''}{masked}{scored}"
    )


def plain(value: object) -> str:
    match value:
        case Enum():
            return value.value
        case float():
            return f"{value:.4g}"
        case list():
            return f"[{' '.join(map(plain, value))}]"
        case dict():
            return f"{{{' '.join(f'{plain(key)}:{plain(item)}' for key, item in value.items())}}}"
    return str(value)


def load_tokenizer(run_dir: Path) -> Tokenizer | None:
    """Loads the tokenizer of the run's model. Returns None if there is none, as with the scripted engine.

    Does not use transformers, whose import takes seconds.
    """
    file = model_directory(run_dir) / "tokenizer.json"
    return Tokenizer.from_file(str(file)) if file.exists() else None


def model_directory(run_dir: Path) -> Path:
    """Returns the directory of the run's model, or the run's own if its configuration names none."""
    config = saved_config(run_dir) if (run_dir / "config.yaml").exists() else {}
    return Path(config.get("model", {}).get("path") or run_dir)
