"""Builds what one completion of a rollout is as a turn: what is new in its prompt, and the parsed answer."""

from itertools import accumulate

from contracts.records import Rollout
from contracts.support.messages import one_line
from extensions.viewer.answers.overview import Answer
from extensions.viewer.answers.pieces import pieces_of
from extensions.viewer.runs.opened import OpenRun
from pipelinerl.batching.sequences import chains_of
from pipelinerl.report.prompt_messages import Part, messages_of

PROMPT = 20_000  # most characters of a prompt
ANSWER = 100_000  # most characters of a thought, of a text, and of a call's arguments
OF_TOOLS = {"malformed_calls", "tool_calls"}  # metrics of rollouts whose problem had tools


def prompt_of(run: OpenRun, record: Rollout, number: int) -> Answer:
    """Returns the text of the prompt's new tokens, or of all if it extends no earlier turn."""
    ids = record.completions[number].prompt_token_ids
    (chain,) = (chain for chain in chains_of(record.completions) if number in chain)
    earlier = chain[: chain.index(number)]
    if earlier:
        before = record.completions[earlier[-1]]
        ids = ids[len(before.prompt_token_ids) + len(before.token_ids) :]
    texts: list[Part] = []
    left = PROMPT
    for text, is_special in run.parts(ids.tolist()):
        texts.append((text[:left], is_special))
        left -= len(text)
        if left < 0:
            break
    return {
        "prompt": texts,
        "messages": messages_of(texts),
        "prompt_is_cut": left < 0,
        "prompt_tokens": len(record.completions[number].prompt_token_ids),
        "new_tokens": len(ids),
        "begins": not earlier,
    }


def answer_of(run: OpenRun, record: Rollout, number: int) -> Answer:
    """Returns the parts of the answer, or why it has none. Without a tokenizer, both are None."""
    if run.answer_parser is None:
        return {"answer": None, "unparsed": None}
    completion = record.completions[number]
    try:
        parsed = run.answer_parser.parse(completion, bool(OF_TOOLS & record.metrics.keys()))
    except ValueError as error:
        return {"answer": None, "unparsed": one_line(error)}
    calls = [(call.function.name, call.function.arguments[:ANSWER]) for call in parsed.calls]
    answer = {
        "thought": parsed.thought[:ANSWER],
        "thought_tokens": _tokens_of(parsed.thought, run, completion.token_ids.tolist()),
        "thinks": parsed.thinks,
        "text": parsed.content[:ANSWER],
        "calls": calls,
        "malformed": parsed.malformed,
        "is_cut": max(map(len, (parsed.thought, parsed.content))) > ANSWER,
    }
    return {"answer": answer, "unparsed": None}


def _tokens_of(text: str, run: OpenRun, ids: list[int]) -> int | None:
    """Returns the number of tokens that the first occurrence of the text has a part of; None without one."""
    pieces = pieces_of(ids, run.tokenizer, 0, len(ids)) if text else []
    begin = "".join(piece.text for piece in pieces).find(text)
    ends = accumulate(len(piece.text) for piece in pieces)
    of_text = (
        piece.count
        for piece, end in zip(pieces, ends, strict=True)
        if begin < end and end - len(piece.text) < begin + len(text)
    )
    return sum(of_text) if text and begin >= 0 else None
