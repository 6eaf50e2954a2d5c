"""A tiny model that calls the calculator in several formats, taught in a minute: `make_tool_model(path)`.

The prompt says in which format. In Hermes' the template does as Qwen2.5's does: the tools stand in the system
turn, a call is in `<tool_call>`, and results come in a user turn, in `<tool_response>`. The model copies the
problem into a call and the result into an answer; it knows no arithmetic.
"""

import random
import re
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from extensions.demo.domains.arithmetic import calculate
from extensions.demo.domains.calculator import TOOL, Calculator
from extensions.demo.training import fit, muon_and_adamw
from tests.conversations.families import family_tokenizer, published

DOMAIN = Calculator(digits=3, prompt="{expression}", turns=3, train_size=5000, heldout_size=100)
CONTEXT = 256
Row = tuple[list[int], list[int]]
CALL = '{"name": "calculator", "arguments": {"expression": "'
RESULT, RESULTED = "\n<tool_response>\n", "\n</tool_response>"
TEMPLATE = """\
{%- if tools -%}
{{- '<|system|>Tools:' -}}
{%- for tool in tools -%}{{- '\\n' ~ tool.function.name ~ ': ' ~ tool.function.description -}}{%- endfor -%}
{{- eos_token -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' -%}{{- '<|user|>' -}}{%- endif -%}
{{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' -}}
{%- if loop.last or loop.nextitem.role != 'tool' -%}{{- eos_token -}}{%- endif -%}
{%- else -%}
{{- '<|' ~ message.role ~ '|>' ~ (message.content or '') -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' -}}
{{- call.function.arguments | tojson ~ '}\\n</tool_call>' -}}
{%- endfor -%}
{{- eos_token -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"""


QWEN = published("qwen3_5_think")
GLM = published("glm4moe")
FORMATS = {  # chat template, the tokens that end an answer
    "hermes": (TEMPLATE, ["<|end|>"]),
    "qwen3.5": (QWEN, ["<|im_end|>", "<|endoftext|>"]),
    "glm-4.5": (GLM, ["<|user|>", "<|observation|>", "<|endoftext|>"]),
    "broken": (QWEN.replace("<function=", "<function:"), ["<|im_end|>", "<|endoftext|>"]),
}
PLACE = "\ue000"


def tool_tokenizer(name: str = "hermes") -> PreTrainedTokenizerBase:
    """Returns a tokenizer with one token per byte, except for the constant texts of conversations."""
    template, ends = FORMATS[name]
    tokenizer = family_tokenizer(template, ends[0])
    pieces = {CALL}
    for each, _ in FORMATS.values():
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": PLACE}, *called(PLACE, PLACE)],
            chat_template=each,
            tools=[TOOL],
            tokenize=False,
        )
        pieces |= {*re.split("|".join(map(re.escape, [PLACE, *tokenizer.get_added_vocab()])), text)}
    tokenizer.add_tokens(sorted(piece for piece in pieces if len(piece) > 2))
    return tokenizer


def called(expression: str, value: str) -> list[dict]:
    """Returns the messages of a call and of its result."""
    function = {"name": TOOL["function"]["name"], "arguments": {"expression": expression}}
    call = {"type": "function", "id": "call_1", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": value},
    ]


def make_tool_model(path: Path, formats: list[str], steps: int = 150, batch_size: int = 64) -> str:
    """Makes a model that knows the formats. Its directory has the template of the first one."""
    torch.manual_seed(0)
    tokenizer = tool_tokenizer(formats[0])
    ends = [tokenizer.convert_tokens_to_ids(end) for name in formats for end in FORMATS[name][1]]
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=True,
        initializer_range=0.06,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=list(dict.fromkeys(ends)),
    )
    model = Qwen2ForCausalLM(config).train()
    rows = conversations([tool_tokenizer(name) for name in formats], ends)
    fit(model, muon_and_adamw(model), batches(rows, tokenizer.pad_token_id, batch_size), steps, warmup=20)
    model.eval().save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def batches(rows: Iterator[Row], padding: int, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields token ids and labels [B, T]; the assistant's two turns are labelled."""
    while True:
        batch = list(islice(rows, size))
        longest = max(len(ids) for ids, _ in batch)
        ids = torch.full((size, longest), padding)
        labels = torch.full((size, longest), -100)
        for row, (tokens, learnt) in enumerate(batch):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            labels[row, : len(tokens)] = torch.tensor(learnt)
        yield ids, labels


def conversations(tokenizers: list[PreTrainedTokenizerBase], ends: list[int]) -> Iterator[Row]:
    """Yields the ids and labels of conversations, in one format after the other."""
    drawn = random.Random(0)
    for tokenizer in cycle(tokenizers):
        problem = DOMAIN.train_problem(drawn.randrange(DOMAIN.train_size))
        expression = problem.messages[0]["content"]
        answer = {"role": "assistant", "content": str(problem.data)}
        messages = [*problem.messages, *called(expression, calculate(expression)), answer]
        ids: list[int] = []
        labels: list[int] = []
        for count in (1, 3):  # messages of each prompt
            prompt = rendered(tokenizer, messages[:count], True)
            after = [
                *rendered(tokenizer, messages[: count + 2], False)[len(prompt) :],
                tokenizer.eos_token_id,
            ]
            sampled = after[: next(i for i, token in enumerate(after) if token in ends) + 1]
            labels += [-100] * (len(prompt) - len(ids)) + sampled
            ids = prompt + sampled
        yield ids, labels


def rendered(tokenizer: PreTrainedTokenizerBase, messages: list[dict], opens: bool) -> list[int]:
    return tokenizer.apply_chat_template(
        messages, tools=[TOOL], add_generation_prompt=opens, return_dict=False
    )
