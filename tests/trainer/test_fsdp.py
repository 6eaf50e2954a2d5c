"""FSDPTrainer keeps the trainer contract (T1 to T7), against plain transformers and torch AdamW."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from contracts.trainer import OptimizerSpec, PackedBatch, StepReport
from tests.trainer import reference
from tests.trainer.models import FAMILIES, make_model, make_sequences
from tests.trainer.processes import OPTIMIZER, run_ranks, started
from trainer_adapters.fsdp import FSDPTrainer
from trainer_adapters.learning_rate import learning_rate

LENGTHS = [5, 17, 1, 32, 2, 9, 40, 13]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    return {family: make_model(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


def pack(sequences) -> PackedBatch:
    return PackedBatch.pack(sequences, rollouts=len(LENGTHS))


def accumulate(worker: FSDPTrainer, micro_batches: list) -> None:
    for sequences in micro_batches:
        batch = pack(sequences)
        worker.backward(reference.objective(worker.forward(batch), batch))


def gradients(worker: FSDPTrainer) -> reference.Tensors:
    return {name: p.grad.full_tensor().clone() for name, p in worker._model.named_parameters()}


def train(worker: FSDPTrainer, seeds: range) -> list[StepReport]:
    reports = []
    for seed in seeds:
        accumulate(worker, [make_sequences(LENGTHS, seed)])
        reports.append(worker.step())
    return reports


# --- T1: forward ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_scores_equal_an_unpacked_forward(models, family):
    sequences = make_sequences(LENGTHS)
    with started(FSDPTrainer(logits_chunk=7), models[family]) as worker:
        scores = worker.forward(pack(sequences), entropy=True)
    expected = reference.scores(reference.load(models[family]), sequences)
    torch.testing.assert_close(scores.logprobs, expected.logprobs, atol=2e-5, rtol=0)
    torch.testing.assert_close(scores.entropy, expected.entropy, atol=2e-5, rtol=0)
    assert scores.logprobs.dtype == torch.float32
    assert not scores.entropy.requires_grad


def test_scores_follow_a_step_after_forwards_without_backward(models):
    sequences = make_sequences(LENGTHS)
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        accumulate(worker, [sequences])
        assert not worker.forward(pack(sequences), grad=False).logprobs.requires_grad
        worker.forward(pack(sequences))
        worker.step()
        scores = worker.forward(pack(sequences), grad=False)
        model = reference.load(models["qwen2"])
        model.load_state_dict(dict(worker.gather_weights()), strict=False)
    torch.testing.assert_close(scores.logprobs, reference.scores(model, sequences).logprobs, atol=2e-5, rtol=0)


def test_bfloat16_compute_keeps_float32_scores_gradients_and_weights(models):
    sequences = make_sequences(LENGTHS)
    expected = reference.scores(reference.load(models["llama"]), sequences)
    with started(FSDPTrainer(compute_dtype="bfloat16"), models["llama"]) as worker:
        scores = worker.forward(pack(sequences))
        worker.backward(scores.logprobs.sum())
        dtypes = {gradient.dtype for gradient in gradients(worker).values()}
        worker.step()
        dtypes |= {tensor.dtype for _, tensor in worker.gather_weights()}
    assert dtypes == {torch.float32}
    error = (scores.logprobs - expected.logprobs).abs()
    assert scores.logprobs.dtype == torch.float32
    assert 1e-4 < error.mean() < 0.1


# --- T2: the gradient is a sum ----------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("options", [{}, {"activation_checkpointing": True, "logits_chunk": 7}])
def test_gradient_is_the_sum_over_micro_batches(models, family, options):
    sequences = make_sequences(LENGTHS)
    expected = reference.gradients(reference.load(models[family]), sequences)
    with started(FSDPTrainer(**options), models[family]) as worker:
        for cut in ([sequences], [sequences[:3], [], sequences[3:4], sequences[4:]], [[s] for s in sequences]):
            accumulate(worker, cut)
            reference.assert_close(gradients(worker), expected)
            worker._optimizer.zero_grad()


# --- T3: step ---------------------------------------------------------------------------------


def test_step_equals_adamw(models):
    model = reference.load(models["llama"])
    optimizer = reference.adamw(model, OPTIMIZER)
    rates = [0.5e-2, 1e-2, 1e-2, 1e-2 * 7 / 8]
    with started(FSDPTrainer(), models["llama"]) as worker:
        for seed, rate in enumerate(rates):
            sequences = make_sequences(LENGTHS, seed)
            reference.gradients(model, sequences)
            accumulate(worker, [sequences])
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.max_grad_norm)
            assert norm > OPTIMIZER.max_grad_norm
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            report = worker.step()
            assert report.grad_norm == pytest.approx(norm.item(), rel=1e-5)
            assert report.learning_rate == pytest.approx(rate)
            reference.assert_close(dict(worker.gather_weights()), reference.weights(model))


def test_gradients_are_not_scaled_up_to_the_norm(models):
    with started(FSDPTrainer(), models["llama"]) as worker:
        scores = worker.forward(pack(make_sequences(LENGTHS)))
        worker.backward(scores.logprobs.sum() * 1e-6)
        before = gradients(worker)["lm_head.weight"]
        assert 0 < worker.step().grad_norm < OPTIMIZER.max_grad_norm
        moment = worker._optimizer.state[worker._model.lm_head.weight]["exp_avg"].full_tensor()
    torch.testing.assert_close(moment, before * (1 - OPTIMIZER.betas[0]))


def test_learning_rate_schedule():
    constant = OptimizerSpec(lr=2.0)
    assert [learning_rate(constant, k) for k in (0, 1000)] == [2.0, 2.0]
    decaying = OptimizerSpec(lr=2.0, warmup_steps=2, decay_steps=4)
    assert [learning_rate(decaying, k) for k in range(8)] == [1.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0, 0.0]


def test_nonfinite_gradient_skips_the_update(models):
    sequences = make_sequences(LENGTHS)
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        before = dict(worker.gather_weights())
        accumulate(worker, [sequences])
        worker.backward(worker.forward(pack(sequences)).logprobs.sum() * float("nan"))
        report = worker.step()
        assert report.skipped
        assert report.grad_norm != report.grad_norm
        assert all(torch.equal(tensor, before[name]) for name, tensor in worker.gather_weights())
        report, *_ = train(worker, range(1))
        assert not report.skipped
        assert report.learning_rate == pytest.approx(OPTIMIZER.lr)  # the skipped step was the first of two
        assert not torch.equal(dict(worker.gather_weights())["model.norm.weight"], before["model.norm.weight"])


def test_reset_optimizer_forgets_the_moments(models):
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        train(worker, range(2))
        worker.reset_optimizer()
        assert all(not tensor.any() for state in worker._optimizer.state.values() for tensor in state.values())


# --- T4: manifest and weights -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "tied"), [("qwen2", {"lm_head.weight": "model.embed_tokens.weight"}), ("llama", {})]
)
def test_manifest_is_what_is_gathered(models, family, tied):
    expected = reference.load(models[family]).state_dict()
    with started(FSDPTrainer(activation_checkpointing=True), models[family]) as worker:
        manifest = worker.weight_manifest("bfloat16")
        gathered = list(worker.gather_weights())
        train(worker, range(1))
    assert [(p.name, p.shape) for p in manifest.parameters] == [(n, tuple(t.shape)) for n, t in gathered]
    assert {p.dtype for p in manifest.parameters} == {"bfloat16"}
    assert manifest.tied == tied
    assert [name for name in expected if name not in tied] == [name for name, _ in gathered]
    assert all(tensor.is_contiguous() for _, tensor in gathered)
    # Also after a step: what was gathered is a copy.
    assert all(torch.equal(tensor, expected[name]) for name, tensor in gathered)


def test_export_is_a_hugging_face_checkpoint(models, tmp_path):
    for family in ("qwen2", "llama"):
        with started(FSDPTrainer(), models[family]) as worker:
            train(worker, range(1))
            worker.export(tmp_path / family)
            weights = dict(worker.gather_weights())
        exported = AutoModelForCausalLM.from_pretrained(tmp_path / family)
        assert type(exported) is FAMILIES[family][0]
        assert all(torch.equal(tensor, weights[name]) for name, tensor in reference.weights(exported).items())
        assert AutoTokenizer.from_pretrained(tmp_path / family)("w3 w5").input_ids == [3, 5]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama", "qwen2"]


# --- T5: resume -------------------------------------------------------------------------------


def resume(rank: int, world_size: int, port: int, model: str, checkpoint: Path) -> tuple:
    with started(FSDPTrainer(), model, rank, world_size, port) as worker:
        worker.load(checkpoint)
        return finish(worker)


def finish(worker: FSDPTrainer) -> tuple:
    """The next two steps of a run, and a random number."""
    reports = [(r.grad_norm, r.learning_rate, r.skipped) for r in train(worker, range(10, 12))]
    return dict(worker.gather_weights()), reports, torch.rand(1)


def test_resumed_in_a_new_process_is_as_if_uninterrupted(models, tmp_path):
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        train(worker, range(3))
        worker.save(tmp_path / "step").wait()
        worker.save(tmp_path / "step").wait()  # in place of the former
        weights, reports, random = finish(worker)
    assert [path.name for path in tmp_path.iterdir()] == ["step"]
    resumed = run_ranks(1, resume, tmp_path, models["qwen2"], tmp_path / "step")[0]
    reference.assert_close(resumed[0], weights, tolerance=0)
    assert resumed[1:] == (reports, random)


def test_an_interrupted_save_leaves_the_former_checkpoint(models, tmp_path, monkeypatch):
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        worker.save(tmp_path / "step").wait()
        monkeypatch.setattr(worker, "_state", lambda: {"unwritable": (_ for _ in ())})
        with pytest.raises(Exception, match="pickle"):
            worker.save(tmp_path / "step")
        monkeypatch.undo()
        worker.load(tmp_path / "step")


# --- two ranks: T2, T4, T5, T6 ----------------------------------------------------------------


def two_ranks(rank: int, world_size: int, port: int, models: dict[str, str], checkpoint: Path) -> dict:
    """Rank 1 has less to do, or nothing."""
    sequences = make_sequences(LENGTHS)
    rows = [[sequences[:4], []], [[], []], [sequences[4:7], sequences[7:]], [[], [sequences[2]][:0]]]
    result = {}
    for family in ("qwen2", "llama"):
        with started(FSDPTrainer(activation_checkpointing=family == "llama"), models[family], rank, 2, port) as worker:
            start = list(worker.gather_weights())
            accumulate(worker, [row[rank] for row in rows])
            result[family] = {"start": start, "gradients": gradients(worker), "norm": worker.step().grad_norm}
            if family == "qwen2":
                loss = worker.forward(pack(sequences if rank == 1 else [])).logprobs.sum()
                worker.backward(loss * float("inf"))
                result["skipped"] = worker.step().skipped
                worker.save(checkpoint).wait()
            accumulate(worker, [sequences if rank == 1 else []])
            worker.step()
            result[family]["end"] = dict(worker.gather_weights())
        port += 1
    return result


@pytest.fixture(scope="module")
def ranks(models, tmp_path_factory) -> tuple[list, Path]:
    directory = tmp_path_factory.mktemp("ranks")
    return run_ranks(2, two_ranks, directory, models, directory / "step"), directory / "step"


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_gradient_is_the_sum_over_ranks_some_of_them_idle(models, ranks, family):
    expected = reference.gradients(reference.load(models[family]), make_sequences(LENGTHS))
    norm = torch.nn.utils.get_total_norm(expected.values()).item()
    for result in ranks[0]:
        reference.assert_close(result[family]["gradients"], expected)
        assert result[family]["norm"] == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_rank_0_deals_and_gathers_the_weights(models, ranks, family):
    weights = reference.weights(reference.load(models[family]))
    first, second = (result[family]["start"] for result in ranks[0])
    assert [name for name, _ in first] == [name for name, _ in second] == list(weights)
    assert all(torch.equal(tensor, weights[name]) and tensor.is_contiguous() for name, tensor in first)
    assert all(tensor is None for _, tensor in second)


def test_one_infinite_rank_skips_the_step_of_both(ranks):
    assert [result["skipped"] for result in ranks[0]] == [True, True]


def test_resumed_on_another_number_of_ranks(models, ranks):
    results, checkpoint = ranks
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        worker.load(checkpoint)
        accumulate(worker, [make_sequences(LENGTHS)])
        worker.step()
        reference.assert_close(dict(worker.gather_weights()), results[0]["qwen2"]["end"])


# --- T7: memory -------------------------------------------------------------------------------


def peak_rss() -> int:
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))


def test_peak_memory_does_not_grow_with_vocabulary_times_length(tmp_path):
    vocab = 30_000
    short, long = 256, 2048
    with started(FSDPTrainer(logits_chunk=64), make_model(tmp_path / "wide", "qwen2", vocab)) as worker:
        peaks = []
        for tokens in (short, short, long):
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is held now
            accumulate(worker, [make_sequences([32] * (tokens // 32), vocab=vocab)])
            peaks.append(peak_rss())
    one_copy_of_the_logits = (long - short) * vocab * 4
    assert peaks[2] - peaks[1] < 0.25 * one_copy_of_the_logits


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"compute_dtype": "float16"}, {"logits_chunk": 0}, {"fp32_head": "yes"}, {"logits_chunk": 1.5}]
)
def test_bad_options_are_refused_by_name(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        FSDPTrainer(**options)
