"""The tokens between two answers of a conversation, so that no sampled token is ever tokenised again.

A conversation that is rendered and tokenised anew at every turn may differ from what the model sampled. The
same text may have other token ids, and the template may leave thoughts out. Then a turn no longer extends the
turns before it. Here only what is new is rendered, and put behind the ids as they were sampled.
"""

import threading
from functools import cached_property

from contracts.records import Completion

ANSWER = "~the answer~"
BEFORE = [{"role": "user", "content": "question"}, {"role": "assistant", "content": ANSWER}]  # stand for any


class ChatTemplate:
    """The chat template of the model's tokenizer, which is loaded at first use. Any thread may call it."""

    def __init__(self, model_path: str):
        self._model_path = model_path
        self._one_at_a_time = threading.Lock()

    @cached_property
    def _tokenizer(self):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._model_path, local_files_only=True)

    def prompt_after(self, completion: Completion, messages: list[dict[str, str]]) -> list[int]:
        """Returns the prompt of the turn that follows `completion` and then `messages`.

        Raises ValueError for a template that leaves out what an earlier turn says.
        """
        with self._one_at_a_time:
            return self._prompt_after(completion, messages)

    def _prompt_after(self, completion: Completion, messages: list[dict[str, str]]) -> list[int]:
        tokenizer = self._tokenizer
        whole = tokenizer.apply_chat_template(
            [*BEFORE, *messages], tokenize=False, add_generation_prompt=True
        )
        _, answered, after = whole.rpartition(ANSWER)
        if not answered:
            raise ValueError(f"the chat template of {self._model_path} cannot continue from sampled tokens")
        sampled = completion.token_ids.tolist()
        new = tokenizer(after, add_special_tokens=False)["input_ids"]
        if completion.finish_reason == "stop" and sampled[-1] in new:  # it has sampled its end itself
            end = new.index(sampled[-1])
            if not tokenizer.decode(new[:end]).strip():
                new = new[end + 1 :]
        return [*completion.prompt_token_ids.tolist(), *sampled, *new]
