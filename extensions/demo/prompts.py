"""Tokenises conversations and builds answers as a server does, without a server."""

from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from contracts.records import Completion
from pipelinerl.clients.chat_template import ChatTemplate
from pipelinerl.domains.base import Answer


class Prompts:
    """tokenizer: the tokenizer that is saved in `directory`, from which the chat template loads it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, directory: Path):
        self.tokenizer = tokenizer
        self._template = ChatTemplate(str(directory))

    def of(self, messages: list[dict[str, str]], after: Answer | None = None) -> list[int]:
        if after is not None:
            return self._template.prompt_after(after.completion, messages)
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    def ended(self, text: str) -> list[int]:
        """Returns the tokens of a complete answer with this text."""
        return [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]

    def answer(self, prompt: list[int], sampled: list[int]) -> Answer:
        """Returns an answer without log-probabilities and versions, which domains do not read."""
        completion = Completion(
            prompt_token_ids=np.array(prompt, dtype=np.int32),
            token_ids=np.array(sampled, dtype=np.int32),
            logprobs=np.zeros(len(sampled), dtype=np.float32),
            spans=[],
            temperature=1.0,
            finish_reason="stop" if self.tokenizer.eos_token_id in sampled else "length",
        )
        return Answer(self.tokenizer.decode(sampled, skip_special_tokens=True), completion)
