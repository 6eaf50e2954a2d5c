"""Shortens prompts and answers to one line, for lists."""

LONGEST = 120  # characters


def shortened(text: str, from_end: bool) -> str:
    """Returns the beginning or the end of a text as one line of at most LONGEST characters."""
    line = " ".join(text.split())
    if len(line) <= LONGEST:
        return line
    return f"…{line[-LONGEST + 1 :]}" if from_end else f"{line[: LONGEST - 1]}…"
