"""The demo models' tokenizer, with one token per byte, and their chat template.

It is Qwen2's tokenizer with an empty merge list, because `AutoTokenizer` uses Qwen2's class for Qwen2 models.
Another class would lose its spaces there.
"""

from tokenizers.pre_tokenizers import ByteLevel
from transformers import Qwen2Tokenizer

PAD = "<|pad|>"
END = "<|end|>"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>"]

# Only the assistant's turns end in END, the token at which the model stops.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role not in ['system', 'user', 'assistant'] -%}
{{- raise_exception('the demo model knows no role ' ~ message.role) -}}
{%- endif -%}
{{- '<|' ~ message.role ~ '|>' ~ message.content -}}
{%- if message.role == 'assistant' -%}{{- eos_token -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"""


def byte_tokenizer(max_length: int) -> Qwen2Tokenizer:
    """Returns a tokenizer with one token per byte, and those of the chat template."""
    tokens = [PAD, END, *ROLES, *sorted(ByteLevel.alphabet())]
    return Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[],
        unk_token=None,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=ROLES,
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        padding_side="left",  # sampling starts at the same position for all prompts of a batch
    )
