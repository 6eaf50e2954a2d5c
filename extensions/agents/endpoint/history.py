"""The answers of one session, by the conversations that they answer."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from pipelinerl.domains.base import Answer

START = b""
Chain = list[bytes]  # digests of a conversation's beginnings: of no message, of one, of two, ...


@dataclass(frozen=True)
class Chains:
    """The digests of a conversation: with its tools, and whatever its tools."""

    whole: Chain
    plain: Chain


@dataclass(eq=False)
class Node:
    """An answer that was delivered.

    before: the answer from which its conversation goes on; None at a root. content: its text as delivered.
    key: digest of its conversation, with it and the tools. limit: of its tokens, as asked; None = the run's.
    """

    answer: Answer
    before: "Node | None"
    content: str
    key: bytes
    limit: int | None


@dataclass(frozen=True)
class Place:
    """Where a conversation stands: after `node`, with which `known` messages begin, or at a root.

    kind: of a root: first, repeated, tools or edited; "" if the conversation goes on.
    """

    node: Node | None
    known: int
    kind: str
    chains: Chains


class History:
    """A tree of answers. A conversation goes on from the longest one that is recorded; the latest of equals.

    Messages are equal if their role, text, calls and `tool_call_id` are, without white space at the ends.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []  # in the order of their deliveries
        self._found: defaultdict[bytes, list[Node]] = defaultdict(list)  # by key
        self._plain: set[bytes] = set()  # digests of the same conversations, whatever their tools
        self._asked: set[bytes] = set()

    def place(self, chains: Chains) -> Place:
        """Returns where a conversation goes on, and remembers that it was asked."""
        whole = chains.whole
        was_asked = whole[-1] in self._asked
        is_first = not self._asked
        self._asked.add(whole[-1])
        for known in range(len(whole) - 2, 0, -1):
            if nodes := self._found.get(whole[known]):
                return Place(nodes[-1], known, "", chains)
        kind = "first" if is_first else "edited"
        if was_asked:
            kind = "repeated"
        elif not self._plain.isdisjoint(chains.plain):
            kind = "tools"
        return Place(None, 0, kind, chains)

    def add(self, place: Place, answer: Answer, message: Mapping[str, Any], limit: int | None) -> Node:
        """Records an answer, and the message that it is delivered as."""
        said = digest(canonical(message))
        node = Node(
            answer, place.node, message["content"] or "", digest(place.chains.whole[-1] + said), limit
        )
        self.nodes.append(node)
        self._found[node.key].append(node)
        self._plain.add(digest(place.chains.plain[-1] + said))
        return node

    def remove(self, node: Node) -> None:
        """Forgets an answer that was not delivered after all."""
        self.nodes.remove(node)
        self._found[node.key].remove(node)

    def path(self) -> list[Node]:
        """Returns the answers on the way to the last one."""
        way = []
        node = self.nodes[-1] if self.nodes else None
        while node:
            way.append(node)
            node = node.before
        return way[::-1]


def chains_of(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping] | None) -> Chains:
    said = [digest(canonical(message)) for message in messages]
    plain = _chained(START, said)
    shown = json.dumps(tools, sort_keys=True).encode() if tools else START
    return Chains(_chained(shown, said) if tools else plain, plain)


def _chained(begin: bytes, digests: Sequence[bytes]) -> Chain:
    chain = [digest(begin)]
    for each in digests:
        chain.append(digest(chain[-1] + each))
    return chain


def canonical(message: Mapping[str, Any]) -> bytes:
    """Returns what makes messages equal. Reasoning, annotations, refusals and names are not compared."""
    calls = [
        (call["id"], call["function"]["name"], _arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls") or []
    ]
    said = (message["content"] or "").strip()
    return json.dumps([message["role"], said, calls, message.get("tool_call_id")]).encode()


def _arguments(text: str) -> str:
    """Returns arguments as JSON with sorted keys, or as they are if they are no JSON."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
