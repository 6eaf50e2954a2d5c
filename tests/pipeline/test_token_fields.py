"""Token fields from a directory outside the project, in whole runs: the example, and what users get wrong."""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from contracts.records import MicroBatchRow, StepClosed
from contracts.token_fields import TokenField
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.paths import ROOT
from tests.objectives.cuts import assert_same_under_every_cut
from tests.pipeline.runs import (
    assert_accounted,
    finish,
    job_pid,
    launch,
    records,
    resumptions_of,
    wait_for_record,
)

EXAMPLE = ROOT / "examples" / "token_fields"
SMALL = (
    "inference=scripted",
    "trainer=scripted",
    "+exp=confidence",
    "sampling.max_tokens=7",
    "rollout.segment_tokens=2",
    "batch_size=32",
    "group_size=4",
    "eval.problems=16",
    "stop_at=null",
)
CHECKS = '''
"""The example's two parts with another field, an objective that looks at every value, a reward, a filter."""

import time
from pathlib import Path

import msgspec
import numpy as np
import torch
from confident_sums import ConfidentSums, confidence
from dataclasses import replace
from weighed_objective import Weighed


def mark(token_ids):
    return (token_ids * 7 + np.arange(len(token_ids))).astype(np.uint16)


class Marked(ConfidentSums):
    async def rollout(self, client, problem):
        attempt = await super().rollout(client, problem)
        if problem.problem_id.startswith("heldout"):  # not trained on: it may be anything there
            fields = [{"confidence": np.zeros(3)} for _ in attempt.completions]
        else:
            fields = [c.token_fields | {"mark": mark(c.token_ids)} for c in attempt.completions]
        completions = [
            msgspec.structs.replace(c, token_fields=f)
            for c, f in zip(attempt.completions, fields, strict=True)
        ]
        return replace(attempt, completions=completions)


class Checked(Weighed):
    def __call__(self, scores, batch):
        for start, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
            self.check(batch, slice(start, end))
        fields = batch.token_fields
        assert [*fields] == ["confidence", "mark"]
        assert (fields["confidence"].dtype, fields["mark"].dtype) == (torch.float32, torch.uint16)
        while batch.step == 3 and Path("held").exists():
            time.sleep(0.02)
        lag = (batch.step - batch.versions)[batch.loss_mask]
        assert (lag >= 0).all() and (lag <= 4).all(), lag
        loss, sums = super().__call__(scores, batch)
        return loss, sums | {"lag_total": lag.double().sum()}

    def check(self, batch, place):
        sampled = batch.versions[place] >= 0
        token_ids = batch.token_ids[place][sampled].numpy()
        for name, given, fill in [("confidence", confidence(token_ids), -1.0), ("mark", mark(token_ids), 9)]:
            expected = np.full(len(sampled), fill, given.dtype)
            expected[sampled.numpy()] = given
            assert np.array_equal(batch.token_fields[name][place].numpy(), expected), name


class Brevity:
    name = "brevity"

    def __call__(self, rollouts, version):
        return np.array([-0.1 * rollout.sampled_tokens for rollout in rollouts])


class EveryThird:
    reason = "third"

    def __call__(self, rollouts, advantages):
        return np.full(len(rollouts), rollouts[0].group_id % 3 != 0)
'''
CHECKED = (
    "domain._target_=checks.Marked",
    "objective._target_=checks.Checked",
    "check_parts=false",  # it takes no other tokens than its domain's
    "token_fields.confidence.fill=-1.0",
    "+token_fields.mark={dtype: uint16, fill: 9}",
    "rewards=[{_target_: checks.Brevity}]",
    "filters=[{_target_: checks.EveryThird}]",
)


@pytest.fixture
def own(tmp_path) -> Path:
    """The directory in which a user of the project works."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "own"))


def finished(run: Path, own: Path, *overrides: str) -> tuple[int, str]:
    return finish(launch(run, *overrides, directory=own))


def test_every_value_reaches_the_objective_where_its_domain_put_it(tmp_path, own):
    """In segments, over two ranks, through a stop and the resumption after it."""
    run = tmp_path / "run"
    (own / "checks.py").write_text(CHECKS)
    layout = ("world.trainer_ranks=2", "packing.micro_batch_tokens=256")
    settings = (*SMALL, *CHECKED, *layout, "checkpoint.every=2", "max_steps=7", "epochs=2", "restarts=0")
    (own / "held").touch()  # steps beyond the third
    launcher = launch(run, *settings, directory=own)
    wait_for_record(run, "trainer_events", StepClosed, count=3)
    os.kill(job_pid(run, "pipelinerl.trainer"), signal.SIGKILL)
    assert finish(launcher)[0] == 1
    (own / "held").unlink()
    status, err = finished(run, own, "resume=true")
    assert status == 0, err
    outcomes = assert_accounted(run)
    assert len(outcomes["trained"]) == 7 * 8
    assert all(group % 3 == 0 for group in outcomes["third"]) and outcomes["third"]
    (resumed,) = resumptions_of(run)
    assert resumed.version == 2 and resumed.replayed
    rollouts = [r for r in records(run, "rollouts") if not r.failed]
    assert all(r.reward_components["brevity"] == pytest.approx(-0.1 * r.sampled_tokens) for r in rollouts)
    assert all(r.reward == pytest.approx(sum(r.reward_components.values())) for r in rollouts)
    completions = [c for r in rollouts for c in r.completions]
    assert any(completion.segments for completion in completions)
    assert all(c.token_fields["mark"].dtype == np.uint16 for c in completions)
    assert all(not c.token_fields for r in records(run, "eval_rollouts") for c in r.completions)
    measured = {m["step"]: m for m in read_metrics(metrics_path(run, "trainer")) if "confidence" in m}
    for step, rows in last_rows(run).items():
        assert all(any(row.micro_batches[rank] for row in rows) for rank in range(2))
        sequences = [s for row in rows for share in row.micro_batches for s in share]
        tokens = sum(s.loss_mask.sum() for s in sequences)
        total = sum(s.token_fields["confidence"][s.loss_mask].sum() for s in sequences)
        lag = sum((step - s.versions[s.loss_mask]).sum() for s in sequences)
        assert measured[step + 1]["confidence"] == pytest.approx(total / tokens, rel=1e-5)
        assert measured[step + 1]["lag_total"] == pytest.approx(lag / tokens)


def last_rows(run: Path) -> dict[int, list[MicroBatchRow]]:
    """The rows of each step, as it was formed last."""
    found: dict[int, list[MicroBatchRow]] = {}
    for row in records(run, "rows"):
        found[row.step] = [*found.get(row.step, []), row] if row.index else [row]
    return {step: rows for step, rows in found.items() if rows[-1].closes_step and step < 7}


def test_the_objective_of_the_example_is_the_same_under_every_cut(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    from weighed_objective import Weighed

    declared = {"confidence": TokenField(dtype="float32", fill=0.0)}
    assert_same_under_every_cut(Weighed(), token_fields=declared)
