"""Computes log-probabilities of given tokens by vLLM's prefill, for `POST /score`."""

from uuid import uuid4

from vllm.sampling_params import RequestOutputKind, SamplingParams

from inference_adapters.scoring import Scores
from inference_adapters.vllm import SCORED_AT, SCORED_LAST
from inference_adapters.vllm.engine_client import EngineClient
from inference_adapters.vllm.errors import refusal


async def score(llm: EngineClient, token_ids: list[int], temperature: float, top: int) -> Scores | None:
    """Reads all tokens but the last, and scores each that follows. Returns None if the request was aborted.

    Raises ContractError if vLLM fails. vLLM samples a token after its prompt, so a sequence that fills the
    context must not be the prompt as a whole.
    """
    top = min(top, llm.model_config.get_vocab_size())
    sampling = SamplingParams(
        max_tokens=1,
        prompt_logprobs=top,
        flat_logprobs=True,
        detokenize=False,
        skip_reading_prefix_cache=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args={SCORED_LAST: token_ids[-1], SCORED_AT: temperature},
    )
    prompt = {"prompt_token_ids": token_ids[:-1] or token_ids}
    try:
        outputs = [output async for output in llm.generate(prompt, sampling, f"score-{uuid4().hex}")]
    except Exception as error:
        raise refusal(error) from error
    sampled = outputs[-1].outputs[0]
    if sampled.finish_reason == "abort":
        return None
    found = outputs[-1].prompt_logprobs  # of each position the given token, then the likeliest ones
    pairs = list(zip(found.token_ids, found.logprobs, strict=True))
    rows = [pairs[at : at + 1 + top] for at in range(0, len(pairs), 1 + top)][: len(token_ids) - 1]
    version = int(sampled.weight_versions[0].version)
    return Scores([row[0][1] for row in rows], version, [row[1:] for row in rows])
