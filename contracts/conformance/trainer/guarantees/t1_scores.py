"""The comparisons of T1: the form of scores, and their values token for token."""

from dataclasses import dataclass

import torch

from contracts.conformance.trainer.reference import Reference
from contracts.conformance.verdicts import GuaranteeError
from contracts.records import TrainingSequence
from contracts.trainer import TokenScores

TOLERANCE = 1e-4  # nats, absolute: float32 attention and softmax may sum in another order
Pack = list[TrainingSequence]


@dataclass(frozen=True)
class Scored:
    """The scores of one pack on one rank, with each combination of options that is checked."""

    bare: TokenScores  # grad=False, entropy=False
    probe: TokenScores  # grad=False, entropy=True
    scores: TokenScores  # grad=True, entropy=True
    wrong_gradients: list[str]  # descriptions of scores whose requires_grad is wrong
    changed: list[str]  # names of the batch's tensors that forward has changed


def tensors(scores: TokenScores) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in vars(scores).items() if tensor is not None}


def cpu(scores: TokenScores) -> TokenScores:
    return TokenScores(**{name: tensor.detach().cpu() for name, tensor in tensors(scores).items()})


def check_form(pack: Pack, scored: Scored) -> None:
    """Checks which scores there are, their shapes, dtypes and gradients, and that the batch is unchanged."""
    tokens = sum(len(s.token_ids) for s in pack)
    doing = f"forward a pack of {len(pack)} sequences"
    if [one.entropy is not None for one in (scored.bare, scored.probe, scored.scores)] != [False, True, True]:
        raise GuaranteeError(
            "entropy is not there exactly when asked for", "entropy with entropy=True only", doing
        )
    if scored.wrong_gradients:
        right = "a gradient through every score with grad=True, through none with grad=False"
        raise GuaranteeError(scored.wrong_gradients[0], right, doing)
    if scored.changed:
        right = "a batch that the objective finds as it was packed, its token fields included"
        raise GuaranteeError(f"forward changes {', '.join(scored.changed)} of the batch", right, doing)
    for scores in (scored.bare, scored.probe, scored.scores):
        for name, tensor in tensors(scores).items():
            if tensor.dtype != torch.float32 or tensor.shape != (tokens,):
                wrong = f"{name} is {tensor.dtype} {list(tensor.shape)}"
                raise GuaranteeError(wrong, f"torch.float32 [{tokens}], a number a token", doing)


def check_isolation(pack: Pack, scored: list[Scored]) -> None:
    """Checks that a sequence at the same position has the same scores among other sequences."""
    lengths = [len(sequence.token_ids) for sequence in pack]
    ones, others = (one.scores.logprobs.split(lengths) for one in scored[:2])
    for i in range(1, len(lengths), 2):
        change = (ones[i] - others[i]).abs()
        if not change.max() <= TOLERANCE:
            raise GuaranteeError(
                f"packed neighbours are seen: token {int(change.argmax())} of sequence {i} changes by "
                f"{change.max():.2g} nats when only its neighbours do",
                f"scores that do not depend on neighbours, to {TOLERANCE:.0e}",
                f"forward two packs of lengths {lengths} whose sequences at odd places are the same",
            )


def check_scores(reference: Reference, pack: Pack, scored: Scored, when: str = "") -> float:
    """Checks every score of a pack, and returns the largest error. when: for messages."""
    with torch.no_grad():
        right = reference.scores(pack)
    found = [  # entropies cannot be None here, because all were requested
        ("logprob", "logprobs", scored.scores),
        ("logprob (grad=False)", "logprobs", scored.bare),
        ("entropy", "entropy", scored.scores),
        ("entropy (grad=False)", "entropy", scored.probe),
    ]
    return max(
        _check_tokens(reference, pack, when + noun, name, getattr(scores, name), getattr(right, name))
        for noun, name, scores in found
    )


def _check_tokens(
    reference: Reference, pack: Pack, noun: str, name: str, found: torch.Tensor, right: torch.Tensor
) -> float:
    error = (found - right).abs()
    if not len(error) or error.max() <= TOLERANCE:
        return float(error.max()) if len(error) else 0.0
    with torch.no_grad():
        plain = getattr(reference.scores(pack, temperature=1.0), name)
    token = int(error.argmax())
    matter = f"{noun} of token {token} is {found[token]:.5f} and should be {right[token]:.5f}"
    if (found - plain).abs().max() <= TOLERANCE:
        matter += ": the record's temperature is not applied"
    elif right[token] == 0:
        matter += ": the first token of a sequence has nothing before it"
    lengths = [len(sequence.token_ids) for sequence in pack]
    temperatures = [sequence.temperature for sequence in pack]
    raise GuaranteeError(
        matter,
        f"a Hugging Face forward of the sequence alone, to {TOLERANCE:.0e} nats",
        f"forward a pack of lengths {lengths} at temperatures {temperatures}",
    )
