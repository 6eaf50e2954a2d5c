"""A tiny model that calls the calculator, taught in half a minute: `make_tool_model(path, domain)`.

Its chat template does as Qwen2.5's does: the tools stand in the system turn, a call is in `<tool_call>`, and
results come in a user turn, in `<tool_response>`. It copies the problem into a call and the result into
an answer; it knows no arithmetic.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from extensions.demo.domains.arithmetic import calculate
from extensions.demo.domains.calculator import TOOL, Calculator
from extensions.demo.tokenizer import byte_tokenizer
from extensions.demo.training import fit, muon_and_adamw

CONTEXT = 256
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "'
CALLED = '"}}\n</tool_call>'
RESULT, RESULTED = "\n<tool_response>\n", "\n</tool_response>"
SYSTEM = "Tools:\n" + TOOL["function"]["name"] + ": " + TOOL["function"]["description"]
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


def tool_tokenizer() -> PreTrainedTokenizerBase:
    """Returns a tokenizer with one token per byte, except for the constant texts of conversations."""
    tokenizer = byte_tokenizer(CONTEXT)
    tokenizer.add_tokens([SYSTEM, CALL, CALLED, RESULT, RESULTED])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_tool_model(path: Path, domain: Calculator, steps: int = 150, batch_size: int = 64) -> str:
    torch.manual_seed(0)
    tokenizer = tool_tokenizer()
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
        eos_token_id=tokenizer.eos_token_id,
    )
    model = Qwen2ForCausalLM(config).train()
    fit(model, muon_and_adamw(model), batches(tokenizer, domain, batch_size), steps, warmup=20)
    model.eval().save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def batches(
    tokenizer: PreTrainedTokenizerBase, domain: Calculator, size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields token ids and labels [B, T]; the assistant's two turns are labelled."""
    drawn = random.Random(0)
    while True:
        rows = [conversation(tokenizer, domain, drawn.randrange(domain.train_size)) for _ in range(size)]
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.full((size, longest), tokenizer.pad_token_id)
        labels = torch.full((size, longest), -100)
        for row, (tokens, learnt) in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            labels[row, : len(tokens)] = torch.tensor(learnt)
        yield ids, labels


def conversation(
    tokenizer: PreTrainedTokenizerBase, domain: Calculator, index: int
) -> tuple[list[int], list[int]]:
    """Returns ids and labels."""
    problem = domain.train_problem(index)
    expression = problem.messages[0]["content"]
    opening = tokenizer.apply_chat_template(
        problem.messages, tools=problem.tools, add_generation_prompt=True, tokenize=False
    )
    end = tokenizer.eos_token
    call = f"{CALL}{expression}{CALLED}{end}"
    result = f"<|user|>{RESULT}{calculate(expression)}{RESULTED}{end}<|assistant|>"
    ids, labels = [], []
    for text, learnt in [(opening, False), (call, True), (result, False), (f"{problem.data}{end}", True)]:
        tokens = tokenizer(text)["input_ids"]
        ids += tokens
        labels += tokens if learnt else [-100] * len(tokens)
    return ids, labels
