"""The names that an option of a chat template (`chat_template_kwargs`) cannot have.

Rendering sets them itself: the conversation, how it is rendered and tokenized, the model's special tokens.
The last are functions that templates call.
"""

NOT_OPTIONS = {
    "conversation", "conversations", "messages", "tools", "documents", "chat_template", "self",
    "add_generation_prompt", "continue_final_message", "return_assistant_tokens_mask", "tokenize",
    "tokenizer_kwargs", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "additional_special_tokens", "extra_special_tokens",
    "raise_exception", "strftime_now", "namespace", "range", "dict", "cycler", "joiner", "lipsum",
}  # fmt: skip


def is_option(name: str) -> bool:
    """Returns True if an option of a chat template may have this name."""
    return name not in NOT_OPTIONS and not name.endswith("_token")
