"""Scores the tokens of prompts in vLLM's workers, for `scoring`.

vLLM's own log-probabilities of prompts ignore the temperature, lack the token after the prompt, and need
the logits of a whole step at once.
"""

import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu_input_batch import CachedRequestState
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from inference_adapters.vllm import SCORED_AT, SCORED_LAST

LOGITS_TOKENS = 512  # tokens that have logits at the same time

vllms_own = GPUModelRunner._get_prompt_logprobs_dict


def install() -> None:
    """Replaces vLLM's scoring of prompts in this process."""
    GPUModelRunner._get_prompt_logprobs_dict = prompt_logprobs


def prompt_logprobs(
    runner: GPUModelRunner, hidden_states: torch.Tensor, scheduled: dict[str, int]
) -> dict[str, LogprobsTensors | None]:
    """Returns the log-probabilities of the prompts that this step has completed.

    hidden_states: `[tokens of the step, d]`. scheduled: request -> its number of tokens in this step.
    """
    everything = runner.num_prompt_logprobs
    scored = [name for name in everything if SCORED_LAST in _arguments(runner.requests[name])]
    runner.num_prompt_logprobs = {name: k for name, k in everything.items() if name not in scored}
    found = vllms_own(runner, hidden_states, scheduled)
    for name in scored:
        request = runner.requests[name]
        complete = False
        if name in scheduled:  # otherwise it was preempted
            complete = _score_step(runner, request, hidden_states, scheduled[name], everything[name])
        if complete:
            found[name] = request.in_progress_prompt_logprobs_cpu
        else:
            runner.num_prompt_logprobs[name] = everything[name]
    return found


def _arguments(request: CachedRequestState) -> dict:
    return request.sampling_params.extra_args or {}


def _score_step(
    runner: GPUModelRunner, request: CachedRequestState, hidden_states: torch.Tensor, count: int, top: int
) -> bool:
    """Scores the tokens that follow the `count` ones of this step. Returns whether they were the last.

    top: how many of the likeliest tokens are scored beside each.
    """
    arguments = _arguments(request)
    prompt = request.prompt_token_ids
    if request.in_progress_prompt_logprobs_cpu is None:
        request.in_progress_prompt_logprobs_cpu = LogprobsTensors.empty_cpu(len(prompt), 1 + top)
    scores = request.in_progress_prompt_logprobs_cpu
    began = request.num_computed_tokens
    row = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[request.req_id]])
    following = torch.tensor([*prompt[1:], arguments[SCORED_LAST]])
    for part in torch.arange(count).split(LOGITS_TOKENS):
        logits = runner.model.compute_logits(hidden_states[row + part[0] : row + part[-1] + 1])
        logits = logits.float().div_(arguments[SCORED_AT])  # [part, vocabulary]
        places = began + part
        given = following[places, None].to(logits.device)
        token_ids = torch.cat([given, logits.topk(top).indices], dim=1)
        logprobs = logits.gather(1, token_ids) - logits.logsumexp(-1, keepdim=True)
        scores.logprob_token_ids[places] = token_ids.cpu().to(scores.logprob_token_ids.dtype)
        scores.logprobs[places] = logprobs.cpu()
        scores.selected_token_ranks[places] = 0  # ranks are not reported
    return began + count == len(prompt)
