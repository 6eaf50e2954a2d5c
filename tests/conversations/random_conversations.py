"""Random conversations with real tokenizers, whose answers are tokenized in pieces of random length."""

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from contracts.end_tokens import special_ids
from contracts.records import Completion
from pipelinerl.conversations.base import Conversation, Conversations, Messages, Parsed
from pipelinerl.conversations.probes import NAME, TOOLS
from pipelinerl.conversations.template import TemplateConversations
from tests.builders import completion

WORDS = [
    "the",
    "sum",
    " of",
    " 12",
    "3+4",
    "\n",
    "é",
    "漢字",
    "😀",
    ".\n\n",
    "  ",
    "don't",
    "<",
    "}",
    "'\"",
    "x_1",
]
SPELLED = ["<|im_end|>", "<|end|>", "<|im_start|>user", "<|start|>", "<｜end▁of▁sentence｜>", "<|endoftext|>"]


class Format(NamedTuple):
    """How a family's answers are written. closes: what ends a thought. call: Python format of a call."""

    thought: str
    closes: str
    content: str
    call: str
    stop: str
    stop_after_calls: str


def _tags(call: str) -> Format:
    return Format("<think>\n", "\n</think>\n\n", "", call, "<|im_end|>", "<|im_end|>")


FORMATS = {
    "Qwen3": _tags('\n<tool_call>\n{{"name":  "{name}", "arguments": {arguments}}}\n</tool_call>'),
    "Qwen3.6": _tags(
        "\n\n<tool_call>\n<function={name}>\n<parameter=argument>\n{value}\n</parameter>\n</function>\n</tool_call>"
    ),
    "gpt-oss": Format(
        "",
        "<|end|>",
        "<|start|>assistant<|channel|>final<|message|>",
        "<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}",
        "<|return|>",
        "<|call|>",
    ),
    "DeepSeek V3": Format(
        "<think>\n",
        "\n</think>\n\n",
        "",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜end▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
    ),
}


class Fault(Exception):
    """A next prompt is not as it must be."""


class Trial:
    """Random conversations of one family with one implementation. Counts what was tried.

    made: the implementation, stripping old thoughts and keeping them. twin: extends as it must, if known.
    """

    def __init__(
        self,
        form: Format,
        made: Sequence[Conversations],
        twin: Conversations | None,
        template: TemplateConversations,
    ):
        self._format = form
        self._made = made
        self._twin = twin
        self._template = template
        self._tokenizer = template.renderer.tokenizer
        self._special = special_ids(self._tokenizer)
        added = sorted(self._tokenizer.get_added_vocab(), key=len, reverse=True)
        self._added = re.compile(f"({'|'.join(map(re.escape, added))})")
        self.counts: Counter[str] = Counter()

    def run(self, count: int, seed: str, options: dict[str, str]) -> list[str]:
        """Makes conversations. Returns their faults."""
        faults = []
        for number in range(count):
            try:
                self._run(f"{seed}/{number}", options)
            except (Fault, ValueError) as error:
                faults.append(f"{number}: {type(error).__name__}: {error}")
        return faults

    def _run(self, seed: str, options: dict[str, str]) -> None:
        self._random = random.Random(seed)
        self._conversations = self._random.choice(self._made)
        opening = [{"role": "system", "content": self._text("s")}] if self._random.random() < 0.5 else []
        tools = TOOLS if self._random.random() < 0.7 else None
        asked = Conversation([*opening, self._user("u0")], tools, options)
        prompt = self._conversations.render(asked)
        for turn in range(self._random.randint(1, 6)):
            answered = self._answer(prompt, bool(tools))
            answer = self._conversations.parse(asked, answered)
            if len(answer.calls) > self._called:
                raise Fault("a call inside a thought")
            messages = self._messages(answer, f"{turn + 1}")
            after = self._conversations.extend(asked, answered, answer, messages)
            self.counts["turns"] += 1
            self._check_where_it_begins(asked, answer, messages, after is None)
            if after is None:
                self.counts["begun anew"] += 1
                prompt = self._conversations.render(asked.then(answer, messages))
                self._check_texts(self._tokenizer.decode(prompt), messages)
            else:
                self._check(asked, answered, answer, messages, after)
                prompt = after
            asked = asked.then(answer, messages)

    def _check_where_it_begins(
        self, asked: Conversation, answer: Parsed, messages: Messages, begun: bool
    ) -> None:
        strips = self._template.must_begin_again(asked, answer, messages)
        if strips and self._conversations is self._made[0] and not begun:
            raise Fault("a thought is kept that the template strips")
        if begun and all(message["role"] == "tool" for message in messages):
            raise Fault("a tool's result does not extend the sequence")

    def _text(self, key: str, spells: bool = True) -> str:
        """Returns a text that occurs once in a conversation."""
        parts = self._random.choices(WORDS, k=self._random.randint(0, 8))
        if spells and self._random.random() < 0.3:
            parts.insert(self._random.randint(0, len(parts)), self._random.choice(SPELLED))
        return f"[{key}{''.join(parts)}]"

    def _user(self, key: str) -> dict[str, str]:
        return {"role": "user", "content": self._text(key)}

    def _messages(self, answer: Parsed, key: str) -> Messages:
        messages = [
            {"role": "tool", "tool_call_id": call.id, "content": self._text(f"r{key}.{i}")}
            for i, call in enumerate(answer.calls)
        ]
        if not messages or self._random.random() < 0.2:
            messages.append(self._user(f"u{key}"))
        return messages

    def _answer(self, prompt: list[int], with_tools: bool) -> Completion:
        form = self._format
        text = ""
        begun = self._tokenizer.decode(prompt[-8:]).rstrip().endswith("<think>")
        if begun or form.content or self._random.random() < 0.6:
            quoted = self._call() if with_tools and form.thought and self._random.random() < 0.2 else ""
            text += f"{'' if begun else form.thought}{self._text('t', False)}{quoted}{form.closes}"
        called = with_tools and self._random.random() < 0.6
        if not called or (self._random.random() < 0.3 and not form.content):
            text += form.content + self._text("a", False)
        self._called = int(called)
        text += self._call() if called else ""
        ids = [token for piece in self._pieces(text) for token in self._encoded(piece)]
        if self._random.random() < 0.3:
            self.counts["cut"] += 1
            ids = ids[: self._random.randint(1, len(ids))]
            if self._random.random() < 0.8:
                return completion(prompt, ids, finish_reason="length")
        ends = [form.stop_after_calls if called else form.stop]
        if form.stop == "<|im_end|>":
            ends += ["<|endoftext|>"]
        return completion(prompt, [*ids, *self._encoded(self._random.choice(ends))])

    def _call(self) -> str:
        value = self._text("v", False).replace("\n", " ")
        arguments = json.dumps({"argument": value}, ensure_ascii=False)
        return self._format.call.format(name=NAME, arguments=arguments, value=value)

    def _pieces(self, text: str) -> Iterator[str]:
        """Yields pieces of the text. An added token is one piece."""
        for part in self._added.split(text):
            whole = self._added.fullmatch(part)
            while part:
                size = len(part) if whole else self._random.randint(1, 6)
                yield part[:size]
                part = part[size:]

    def _encoded(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def _check(
        self, asked: Conversation, answered: Completion, answer: Parsed, messages: Messages, after: list[int]
    ) -> None:
        so_far = [*answered.prompt_token_ids.tolist(), *answered.token_ids.tolist()]
        if after[: len(so_far)] != so_far:
            raise Fault("an extension does not begin with the sampled tokens")
        new = self._tokenizer.decode(after[len(so_far) :])
        self._check_texts(new, messages)
        ended = new.partition(f"{messages[0]['content'][:4]}")[0]
        if answer.thinks and answered.finish_reason == "length":
            self.counts["cut thoughts"] += 1
            if self._format.closes.strip() not in ended:
                raise Fault(f"a cut thought is not closed: {ended!r}")
        stops = {self._format.stop, self._format.stop_after_calls, "<|endoftext|>", "<|end|>"}
        said = sum(ended.partition("<|start|>")[0].count(stop) for stop in stops)
        if said != (answered.finish_reason == "length"):
            raise Fault(f"{said} tokens end the answer in {ended!r}")
        plain = [message | {"content": self._plain(message["content"])} for message in messages]
        other = self._conversations.extend(asked, answered, answer, plain)
        if self._structure(after) != self._structure(other):
            raise Fault(f"a message's text becomes special tokens: {new!r}")
        if self._twin and messages[-1]["role"] == "tool":
            self.counts["compared"] += 1
            own = self._twin.extend(asked, answered, answer, messages)
            if own != after:
                raise Fault(
                    f"the template extends by {self._tokenizer.decode(own[len(so_far) :])!r}, not {new!r}"
                )

    def _check_texts(self, text: str, messages: Messages) -> None:
        for message in messages:
            if (count := text.count(message["content"])) != 1:
                raise Fault(f"{message} is {count} times in {text!r}")

    def _plain(self, text: str) -> str:
        return re.sub("|".join(map(re.escape, SPELLED)), "plain", text)

    def _structure(self, ids: list[int]) -> list[int]:
        return [token for token in ids if token in self._special]
