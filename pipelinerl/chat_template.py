"""The tokens between two answers of a conversation, so that no sampled token is ever tokenised again.

A conversation that is rendered and tokenised anew at every turn need not give back what the model sampled:
other token ids for the same text, thoughts that the template leaves out. Then a turn no longer extends the
turns before it. Here only what is new is rendered, and put behind the ids as they were sampled.
"""

from functools import cached_property

from contracts.records import Completion

ANSWER = "answer"
BEFORE = [{"role": "user", "content": "question"}, {"role": "assistant", "content": ANSWER}]  # stand for any


class ChatTemplate:
    """That of the model's tokenizer, which is loaded at first use."""

    def __init__(self, model_path: str):
        self._model_path = model_path

    @cached_property
    def _tokenizer(self):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._model_path, local_files_only=True)

    def prompt_after(self, completion: Completion, messages: list[dict[str, str]]) -> list[int]:
        """The prompt of the turn that follows `completion` and then `messages`. Raises ValueError for a
        template whose rendering of earlier turns depends on later ones even for the plainest text."""
        tokenizer = self._tokenizer
        before = tokenizer.apply_chat_template(BEFORE, tokenize=False)
        whole = tokenizer.apply_chat_template(
            [*BEFORE, *messages], tokenize=False, add_generation_prompt=True
        )
        answer = before.rfind(ANSWER)
        if answer < 0 or not whole.startswith(before):
            raise ValueError(f"the chat template of {self._model_path} cannot go on from sampled tokens")
        sampled = completion.token_ids.tolist()
        new = tokenizer(whole[answer + len(ANSWER) :], add_special_tokens=False)["input_ids"]
        if sampled[-1:] == new[:1] and new[0] in tokenizer.all_special_ids:  # it has ended itself
            new = new[1:]
        return [*completion.prompt_token_ids.tolist(), *sampled, *new]
