"""The forward pass of a batch, and the sampling of its tokens, for `batching`."""

import torch
from transformers.generation.continuous_batching.cache_allocators import FULL_ATTENTION
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.continuous_batching.utils import find_num_key_value_heads

from inference_adapters.transformers.attention import plan_groups
from inference_adapters.transformers.head_input import HeadInput
from inference_adapters.transformers.sampling import draw


class Runner(ModelRunner):
    """A model runner with attention per group of requests, and sampling parameters per row.

    head: what the model's output head reads.
    """

    def __init__(self, processor: ContinuousBatchProcessor, head: HeadInput, attends_per_request: bool):
        super().__init__(
            processor.logit_processor,
            processor.cb_config,
            processor.inputs_and_outputs,
            processor.cache,
            processor.do_sample,
            processor.return_logprobs,
        )
        self.attends_per_request = attends_per_request
        self.head = head
        self.logits_indices: torch.Tensor | None = (
            None  # of the rows in the states; None: these have no others
        )
        config = processor.config
        self.heads_per_key = config.num_attention_heads // find_num_key_value_heads(config)

    def _forward_process_and_sample(self, model, batch_data, *outputs) -> None:
        if self.attends_per_request:
            read = batch_data["read_index"][0]
            write = batch_data["write_index"][0]
            batch_data["groups"], slots = plan_groups(
                batch_data["cu_seq_lens_q"],
                batch_data["cu_seq_lens_k"][FULL_ATTENTION],
                read if len(read) else write,  # if nothing is cached yet, all tokens are new
                self.heads_per_key,
                model.dtype,
            )
            batch_data["read_index"] = [slots]
        self.logits_indices = None if "logits_to_keep" in batch_data else batch_data["logits_indices"]
        super()._forward_process_and_sample(model, batch_data, *outputs)

    def _sample(self, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        batch = self.inputs_and_outputs.requests_in_batch
        requests = [future.state for future in batch if future.has_new_token]
        n = len(requests)  # the other rows belong to incomplete prompts
        if n == 0:
            return
        states = self.head.states[0]
        if self.logits_indices is not None:
            states = states[self.logits_indices]
        token_ids, logprobs = draw(scores[0, :n], states[:n], requests)
        output_ids[0, :n] = token_ids
        output_ids[1, :n] = logprobs.view(torch.int32)  # transformers stores log-probabilities as int32 bits
