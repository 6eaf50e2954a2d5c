"""Tokenizes conversations and builds answers as in a run, without a server."""

from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from contracts.records import Completion
from pipelinerl.conversations.base import Conversation
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.domains.base import Answer


class Prompts:
    """The prompts of one model. directory: where `tokenizer` is saved, because the chat template loads it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, directory: Path):
        self.tokenizer = tokenizer
        self._template = TemplateConversations(str(directory))

    def of(self, messages: list[dict[str, str]], after: Answer | None = None) -> list[int]:
        if after is not None:
            asked = Conversation([])
            parsed = self._template.parse(asked, after.completion)
            return self._template.extend(asked, after.completion, parsed, messages)
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    def ended(self, text: str) -> list[int]:
        """Returns the tokens of a complete answer with this text."""
        return [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]

    def answer(self, prompt: list[int], sampled: list[int]) -> Answer:
        """Returns an answer with zero log-probabilities and no versions, because no domain reads them."""
        completion = Completion(
            prompt_token_ids=np.array(prompt, dtype=np.int32),
            token_ids=np.array(sampled, dtype=np.int32),
            logprobs=np.zeros(len(sampled), dtype=np.float32),
            spans=[],
            temperature=1.0,
            finish_reason="stop" if self.tokenizer.eos_token_id in sampled else "length",
        )
        return Answer(self.tokenizer.decode(sampled, skip_special_tokens=True), completion)
