"""Broken servers. G9: options of the chat template. G6: options that are not offered."""

from inference_adapters import generation_routes
from inference_adapters.prompts import ChatPrompts
from inference_adapters.scripted import ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant
from tests.conformance.odd_servers.declarations import ReadsAnOptionOfItsTemplate


@mutant("G9", "chat_template_kwargs {'loud'", part="template-options")
class IgnoresTheOptionsOfItsTemplate(ReadsAnOptionOfItsTemplate):
    def encode_chat(self, messages, tools, options=None):
        return super().encode_chat(messages, tools)


@mutant("G9", "chat_template_kwargs {}", part="template-options")
class KeepsTheOptionsOfTheLastPrompt(ReadsAnOptionOfItsTemplate):
    async def start(self, version):
        await super().start(version)
        right = ChatPrompts.of
        kept: dict[str, list[int]] = {}

        async def of(prompts, body):
            text = str(body.messages)
            if body.chat_template_kwargs or text not in kept:
                kept[text] = await right(prompts, body)
            return kept[text]

        ChatPrompts.of = of


@mutant("G9", "^200 ", part="template-options")
class TakesOptionsThatRenderingSets(ReadsAnOptionOfItsTemplate):
    async def start(self, version):
        await super().start(version)
        right = generation_routes.check_options

        def check(body):
            right(body.model_copy(update={"chat_template_kwargs": None}))

        generation_routes.check_options = check


@mutant("G6", "^200 ", part="requests")
class DropsOptionsThatItDoesNotOffer(ScriptedEngine):
    async def start(self, version):
        await super().start(version)
        right = generation_routes.check_capabilities

        def check(body, capabilities):
            right(body, [*capabilities, "template_options"])

        generation_routes.check_capabilities = check

    def encode_chat(self, messages, tools, options=None):
        return super().encode_chat(messages, tools)
