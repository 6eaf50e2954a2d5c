"""Computes log-probabilities of given tokens by vLLM's prefill, for `POST /score`."""

from uuid import uuid4

from vllm.sampling_params import RequestOutputKind, SamplingParams

from contracts.errors import ContractError, ErrorCode
from inference_adapters.scoring import Scores
from inference_adapters.vllm.engine_client import EngineClient
from inference_adapters.vllm.errors import refusal
from inference_adapters.vllm.prompt_scores import LAST, TEMPERATURE


async def score(llm: EngineClient, token_ids: list[int], temperature: float) -> Scores:
    """Reads all tokens but the last, and scores each that follows. Raises ContractError if vLLM fails.

    So a sequence may fill the context, although vLLM samples a token after its prompt.
    """
    sampling = SamplingParams(
        max_tokens=1,
        prompt_logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        skip_reading_prefix_cache=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args={LAST: token_ids[-1], TEMPERATURE: temperature},
    )
    prompt = {"prompt_token_ids": token_ids[:-1] or token_ids}
    try:
        outputs = [output async for output in llm.generate(prompt, sampling, f"score-{uuid4().hex}")]
    except Exception as error:
        raise refusal(error) from error
    sampled = outputs[-1].outputs[0]
    if sampled.finish_reason == "abort":
        raise ContractError(ErrorCode.WEIGHTS_LOST, "the weights were lost and did not come back in time")
    scores = outputs[-1].prompt_logprobs.logprobs[: len(token_ids) - 1]
    return Scores(scores, int(sampled.weight_versions[0].version))
