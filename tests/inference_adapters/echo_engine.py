"""A server that says what it was last told, and takes tools: so a client decides what is called."""

import json

from contracts.inference import EngineInfo, TokenDelta
from inference_adapters.scripted import EOS, ScriptedEngine
from inference_adapters.serve import arguments, run


class EchoEngine(ScriptedEngine):
    def info(self) -> EngineInfo:
        info = super().info()
        return info.model_copy(update={"capabilities": [*info.capabilities, "tools"]})

    def encode_chat(self, messages, tools):
        """Returns the ids of the last message, or of the unchanged arguments of its call."""
        last = messages[-1]
        calls = last.get("tool_calls")
        return self.encode(json.dumps(calls[0]["function"]["arguments"]) if calls else last["content"])

    async def _generate(self, prompt, sampling):
        reply = [*prompt, EOS][: sampling.max_tokens]
        for position, token_id in enumerate(reply, 1):
            ends = "stop" if token_id == EOS else "length" if position == sampling.max_tokens else None
            yield TokenDelta([token_id], [-1.0], [self._version], ends)


if __name__ == "__main__":
    options = arguments(__doc__).parse_args()
    run(EchoEngine(), options)
