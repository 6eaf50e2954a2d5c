"""Renders the tokens between two answers of a conversation, so that sampled tokens are never re-tokenised.

If every turn rendered and tokenised the conversation anew, it could differ from what the model sampled. The
same text may have other token ids, and the template may drop the model's thinking. Then a turn no longer
extends the turns before it. So only the new messages are rendered, and appended to the sampled ids.
"""

import threading
from functools import cached_property

from contracts.records import Completion, unsampled

ANSWER = "~the answer~"
BEFORE = [{"role": "user", "content": "question"}, {"role": "assistant", "content": ANSWER}]  # any turns


class ChatTemplate:
    """The chat template of the model's tokenizer, which is loaded at first use. Any thread may call it."""

    def __init__(self, model_path: str):
        self._model_path = model_path
        self._one_at_a_time = threading.Lock()

    @cached_property
    def _tokenizer(self):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._model_path, local_files_only=True)

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """Returns the prompt of a conversation, as a server renders it."""
        with self._one_at_a_time:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def answered(self, messages: list[dict[str, str]], answer: str) -> Completion:
        """Returns the completion that `answer` is, with the token that ends it. Nobody sampled it.

        Raises ValueError for a template that shows the conversation otherwise once it is answered.
        """
        with self._one_at_a_time:
            return self._answered(messages, answer)

    def _answered(self, messages: list[dict[str, str]], answer: str) -> Completion:
        tokenizer = self._tokenizer
        whole = [*messages, {"role": "assistant", "content": answer}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        text = tokenizer.apply_chat_template(whole, tokenize=False)
        if not text.startswith(prompt):
            raise ValueError(f"the chat template of {self._model_path} changes a prompt when it is answered")
        end = tokenizer.eos_token_id
        sampled = tokenizer(text.removeprefix(prompt), add_special_tokens=False)["input_ids"]
        if end is not None:
            sampled = [*sampled[: sampled.index(end) if end in sampled else None], end]
        return unsampled(tokenizer(prompt, add_special_tokens=False)["input_ids"], sampled)

    def prompt_after(self, completion: Completion, messages: list[dict[str, str]]) -> list[int]:
        """Returns the prompt of the next turn: `completion` with its prompt, followed by `messages`.

        Raises ValueError for a template that leaves out the text of earlier turns.
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
        if completion.finish_reason == "stop" and sampled[-1] in new:  # its end token is sampled
            end = new.index(sampled[-1])
            if not tokenizer.decode(new[:end]).strip():
                new = new[end + 1 :]
        return [*completion.prompt_token_ids.tolist(), *sampled, *new]
