"""FSDPTrainer keeps the trainer contract, on one rank: against plain transformers and torch AdamW."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, PreTrainedTokenizerFast, Qwen3NextConfig

from contracts.conformance.trainer.guarantees.t7_memory import peak_bytes
from contracts.trainer import OptimizerSpec
from tests.trainer_adapters import reference
from tests.trainer_adapters.models import FAMILIES, SIZES, VOCAB, make_model, make_sequences
from tests.trainer_adapters.workers import LENGTHS, OPTIMIZER, accumulate, pack, started, train
from trainer_adapters.attention import PACKED
from trainer_adapters.fsdp import FSDPTrainer, full
from trainer_adapters.learning_rate import learning_rate
from trainer_adapters.token_scores import TokenScorer


def gradients(worker: FSDPTrainer) -> reference.Tensors:
    return {name: full(p.grad).clone() for name, p in worker._model.named_parameters()}


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
    torch.testing.assert_close(
        scores.logprobs, reference.scores(model, sequences).logprobs, atol=2e-5, rtol=0
    )


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


def test_a_gradient_flows_through_the_entropy_alone(models):
    sequences = make_sequences(LENGTHS)
    weights = pack(sequences).advantages
    model = reference.load(models["qwen2"])
    (reference.scores(model, sequences).entropy * weights).sum().backward()
    with started(FSDPTrainer(logits_chunk=7), models["qwen2"]) as worker:
        for cut in (sequences[:3], [], sequences[3:]):
            batch = pack(cut)
            worker.backward((worker.forward(batch, entropy=True).entropy * batch.advantages).sum())
        reference.assert_close(gradients(worker), {n: p.grad for n, p in model.named_parameters()})
        assert not worker.forward(batch, grad=False, entropy=True).entropy.requires_grad


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation_checkpointing": True, "logits_chunk": 7},
        {"activation_checkpointing": "selective"},
    ],
)
def test_gradient_is_the_sum_over_micro_batches(models, family, options):
    sequences = make_sequences(LENGTHS)
    expected = reference.gradients(reference.load(models[family]), sequences)
    with started(FSDPTrainer(**options), models[family]) as worker:
        for cut in (
            [sequences],
            [sequences[:3], [], sequences[3:4], sequences[4:]],
            [[s] for s in sequences],
        ):
            accumulate(worker, cut)
            reference.assert_close(gradients(worker), expected)
            worker._optimizer.zero_grad()


def test_gradient_of_overlapping_forwards(models):
    """Probes, gathering and other forwards may come between a forward and its backward."""
    sequences = make_sequences(LENGTHS)
    expected = reference.gradients(reference.load(models["qwen2"]), sequences)
    halves = [pack(sequences[:4]), pack(sequences[4:])]
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        losses = [reference.objective(worker.forward(half), half) for half in halves]
        worker.forward(halves[0], grad=False)
        assert dict(worker.gather_weights()).keys() == expected.keys()
        for loss in losses:
            worker.backward(loss)
        reference.assert_close(gradients(worker), expected)


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
        moment = worker._optimizer.state[worker._model.lm_head.weight]["exp_avg"]
    torch.testing.assert_close(moment, before * (1 - OPTIMIZER.betas[0]))


def test_learning_rate_schedule():
    constant = OptimizerSpec(lr=2.0)
    assert [learning_rate(constant, k) for k in (0, 1000)] == [2.0, 2.0]
    decaying = OptimizerSpec(lr=2.0, warmup_steps=2, decay_steps=4)
    assert [learning_rate(decaying, k) for k in range(8)] == [1.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0, 0.0]


def test_nonfinite_gradient_skips_the_update(models):
    sequences = make_sequences(LENGTHS)
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        before = {name: tensor.clone() for name, tensor in worker.gather_weights()}
        accumulate(worker, [sequences])
        worker.backward(worker.forward(pack(sequences)).logprobs.sum() * float("nan"))
        report = worker.step()
        assert report.skipped
        assert report.grad_norm != report.grad_norm
        assert all(torch.equal(tensor, before[name]) for name, tensor in worker.gather_weights())
        report, *_ = train(worker, range(1))
        assert not report.skipped
        assert report.learning_rate == pytest.approx(OPTIMIZER.lr)  # the skipped step was the first of two
        assert not torch.equal(
            dict(worker.gather_weights())["model.norm.weight"], before["model.norm.weight"]
        )


def test_reset_optimizer_forgets_the_moments(models):
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        train(worker, range(2))
        worker.reset_optimizer()
        assert all(
            not tensor.any() for state in worker._optimizer.state.values() for tensor in state.values()
        )


# --- T4: manifest and weights -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "tied"), [("qwen2", {"lm_head.weight": "model.embed_tokens.weight"}), ("llama", {})]
)
def test_manifest_is_what_is_gathered(models, family, tied):
    expected = reference.load(models[family]).state_dict()
    with started(FSDPTrainer(activation_checkpointing=True), models[family]) as worker:
        manifest = worker.weight_manifest("bfloat16")
        gathered = list(worker.gather_weights())
    assert [(p.name, p.shape) for p in manifest.parameters] == [(n, tuple(t.shape)) for n, t in gathered]
    assert {p.dtype for p in manifest.parameters} == {"bfloat16"}
    assert manifest.tied == tied
    assert [name for name in expected if name not in tied] == [name for name, _ in gathered]
    assert all(tensor.is_contiguous() for _, tensor in gathered)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in gathered)


def test_one_rank_gathers_without_a_copy(models):
    with started(FSDPTrainer(), models["llama"]) as worker:
        own = {name: full(p).data_ptr() for name, p in worker._model.named_parameters()}
        assert {name: tensor.data_ptr() for name, tensor in worker.gather_weights()} == own


def test_export_is_a_hugging_face_checkpoint(models, tmp_path):
    for family in ("qwen2", "llama"):
        with started(FSDPTrainer(), models[family]) as worker:
            train(worker, range(1))
            worker.export(tmp_path / family)
            weights = dict(worker.gather_weights())
        exported = AutoModelForCausalLM.from_pretrained(tmp_path / family)
        assert type(exported) is FAMILIES[family][0]
        assert all(torch.equal(tensor, weights[name]) for name, tensor in reference.weights(exported).items())
        assert PreTrainedTokenizerFast.from_pretrained(tmp_path / family)("w3 w5").input_ids == [3, 5]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama", "qwen2"]


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.6, "top_p": 0.9}, {"do_sample": True, "top_k": 7}]
)
def test_an_export_has_the_generation_config_of_its_base(tmp_path, sampling):
    given = {"eos_token_id": [VOCAB - 1, 7], "pad_token_id": 5, "bos_token_id": 3, **sampling}
    base = make_model(tmp_path / "base", "qwen2")
    (tmp_path / "base" / "generation_config.json").write_text(json.dumps(given))
    with started(FSDPTrainer(), base) as worker:
        worker.export(tmp_path / "out")
    exported = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert {name: exported.get(name) for name in given} == given
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").generation_config
    assert (loaded.eos_token_id, loaded.pad_token_id) == ([VOCAB - 1, 7], 5)


# --- T7: memory -------------------------------------------------------------------------------


def test_peak_memory_does_not_grow_with_vocabulary_times_length(tmp_path):
    vocab, short, long = 30_000, 256, 1280
    model = make_model(tmp_path / "wide", "qwen2", vocab)
    with started(FSDPTrainer(logits_chunk=64, activation_checkpointing=True), model) as worker:
        few = peak_bytes(
            "cpu", lambda: accumulate(worker, [make_sequences([32] * (short // 32), vocab=vocab)])
        )
        many = peak_bytes(
            "cpu", lambda: accumulate(worker, [make_sequences([32] * (long // 32), vocab=vocab)])
        )
    one_copy_of_the_logits = (long - short) * vocab * 4
    assert few > 64 * vocab * 4  # one chunk was seen
    assert many - few < 0.1 * one_copy_of_the_logits


def test_activation_checkpointing_saves_memory(models):
    def peak(on: bool) -> int:
        with started(FSDPTrainer(activation_checkpointing=on), models["llama"]) as worker:
            return peak_bytes("cpu", lambda: accumulate(worker, [make_sequences([32] * 32)]))

    assert peak(True) < 0.8 * peak(False)


# --- refusals ---------------------------------------------------------------------------------


def test_models_that_packing_or_chunking_would_score_wrongly_are_refused():
    sizes = dict(SIZES, vocab_size=VOCAB, num_hidden_layers=4, head_dim=8)
    for config, reason in (
        (Gemma2Config(**sizes), "final_logit_softcapping"),
        (Qwen3NextConfig(**sizes), "linear_attention"),
    ):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=PACKED)
        with pytest.raises(ValueError, match=reason):
            TokenScorer(model, fp32_head=True, logits_chunk=8)


@pytest.mark.parametrize(
    "options",
    [
        {"compute_dtype": "float16"},
        {"logits_chunk": 0},
        {"fp32_head": "yes"},
        {"logits_chunk": 1.5},
        {"value_head": 1},
        {"activation_checkpointing": "some"},
        {"activation_checkpointing": 1},
    ],
)
def test_bad_options_are_refused_by_name(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        FSDPTrainer(**options)
