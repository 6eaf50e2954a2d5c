"""Converts rollouts to rows of a pyarrow table, and defines its schema.

Maps are lists of (name, value) structs, because the library `datasets` has no map type.
"""

from collections.abc import Iterable, Mapping

import pyarrow as pa
from tokenizers import Tokenizer

from contracts.records import Array, Completion, Rollout
from pipelinerl.report.accounting import GroupAccounts


def _struct_list(**fields: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct(fields))


VALUES = _struct_list(name=pa.string(), value=pa.float64())
COMPLETIONS = _struct_list(
    prompt_token_ids=pa.list_(pa.int32()),
    token_ids=pa.list_(pa.int32()),
    logprobs=pa.list_(pa.float32()),
    spans=_struct_list(version=pa.int64(), start=pa.int64(), end=pa.int64()),
    segments=pa.list_(pa.int64()),
    temperature=pa.float64(),
    finish_reason=pa.string(),
    server=pa.string(),
    began=pa.float64(),
    ended=pa.float64(),
    token_fields=_struct_list(name=pa.string(), values=pa.list_(pa.float64())),
    prompt=pa.string(),
    text=pa.string(),
)
SCHEMA = pa.schema(
    {
        "run": pa.string(),
        "rollout_id": pa.string(),
        "group_id": pa.int64(),
        "problem_id": pa.string(),
        "domain": pa.string(),
        "draw": pa.int64(),
        "status": pa.string(),
        "reward": pa.float64(),
        "success": pa.float64(),
        "expected": pa.string(),
        "reason": pa.string(),
        "outcome": pa.string(),
        "outcome_reason": pa.string(),
        "trained_version": pa.int64(),
        "undone_versions": pa.list_(pa.int64()),
        "first_version": pa.int64(),
        "last_version": pa.int64(),
        "sampled_tokens": pa.int64(),
        "started_at": pa.float64(),
        "finished_at": pa.float64(),
        "reward_components": VALUES,
        "turn_rewards": pa.list_(pa.float64()),
        "metrics": VALUES,
        "completions": COMPLETIONS,
    }
)
Row = dict[str, object]


def row_of(rollout: Rollout, tokenizer: Tokenizer | None, accounts: GroupAccounts | None) -> Row:
    """Returns a rollout as a row of SCHEMA. accounts: outcomes of training groups; None for evaluations."""
    versions = rollout.versions
    return {
        "run": rollout.run,
        "rollout_id": rollout.rollout_id,
        "group_id": rollout.group_id,
        "problem_id": rollout.problem_id,
        "domain": rollout.domain,
        "draw": rollout.draw,
        "status": rollout.status,
        "reward": rollout.reward,
        "success": rollout.success,
        "expected": rollout.expected,
        "reason": rollout.reason,
        "first_version": versions[0] if versions else None,
        "last_version": versions[-1] if versions else None,
        "sampled_tokens": rollout.sampled_tokens,
        "started_at": rollout.started_at,
        "finished_at": rollout.finished_at,
        "reward_components": _values(rollout.reward_components),
        "turn_rewards": rollout.turn_rewards,
        "metrics": _values(rollout.metrics),
        "completions": [_completion(completion, tokenizer) for completion in rollout.completions],
        **(_outcome(accounts, rollout.group_id) if accounts else {}),
    }


def _outcome(accounts: GroupAccounts, group: int) -> Row:
    settlement = accounts.settlement_of(group)
    row: Row = {"outcome": "in_flight", "undone_versions": accounts.undone.get(group, [])}
    if settlement is None:
        return row
    if settlement.reason:
        return row | {"outcome": "dropped", "outcome_reason": str(settlement.reason)}
    return row | {"outcome": "trained", "trained_version": settlement.version}


def _completion(completion: Completion, tokenizer: Tokenizer | None) -> Row:
    fields: Iterable[tuple[str, Array]] = completion.token_fields.items()
    return {
        "prompt_token_ids": completion.prompt_token_ids,
        "token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "spans": [{"version": s.version, "start": s.start, "end": s.end} for s in completion.spans],
        "segments": completion.segments,
        "temperature": completion.temperature,
        "finish_reason": completion.finish_reason,
        "server": completion.server,
        "began": completion.began,
        "ended": completion.ended,
        "token_fields": [{"name": name, "values": values.astype(float)} for name, values in fields],
        "prompt": _text(completion.prompt_token_ids, tokenizer),
        "text": _text(completion.token_ids, tokenizer),
    }


def _text(token_ids: Array, tokenizer: Tokenizer | None) -> str | None:
    return tokenizer.decode(token_ids.tolist(), skip_special_tokens=False) if tokenizer else None


def _values(by_name: Mapping[str, float]) -> list[Row]:
    return [{"name": name, "value": value} for name, value in by_name.items()]


def size_of(rollout: Rollout) -> int:
    """Estimates the memory of a rollout's row, in bytes."""
    tokens = sum(len(c.prompt_token_ids) + len(c.token_ids) for c in rollout.completions)
    values = sum(len(array) for c in rollout.completions for array in c.token_fields.values())
    return BYTES_A_ROW + BYTES_A_TOKEN * tokens + 8 * values


BYTES_A_ROW = 2000
BYTES_A_TOKEN = 16  # id, log-probability and text
