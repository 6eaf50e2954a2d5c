"""Broken servers. G9: choices as they complete. G6: in a stream. G11: whose reader leaves."""

from starlette.responses import Response

from inference_adapters import completions, generation_routes, streaming
from tests.conformance.broken_servers.arrays import without_checking
from tests.conformance.broken_servers.mutants import mutant


@mutant("G9", "lines of choices")
def gives_all_choices_in_each_line(options):
    completions.Completion.alone = lambda self, index: self._with(range(index + 1))


@mutant("G9", "lines of choices")
def numbers_each_line_from_0(options):
    right = completions.Completion.alone

    def alone(self, index):
        answer = right(self, index)
        answer["choices"][0]["index"] = 0
        return answer

    completions.Completion.alone = alone


@mutant("G9", "lines of choices")
def loses_the_last_choice(options):
    right = generation_routes._lines

    async def lines(completion, deltas):
        sent = []
        async for line in right(completion, deltas):
            sent.append(line)
            if len(sent) < max(2, completion.n):
                yield line

    generation_routes._lines = lines


@mutant("G9", "a choice that ends at once arrived after")
def holds_all_lines_until_the_last_choice_has_ended(options):
    right = generation_routes._lines

    async def lines(completion, deltas):
        for line in [line async for line in right(completion, deltas)]:
            yield line

    generation_routes._lines = lines


@mutant("G9", "choices of the same tokens")
def repeats_the_first_choice(options):
    right = completions.Completion.alone

    def alone(self, index):
        first = next(choice for choice in self.choices if choice.finish_reason)
        self.choices[index] = first
        return right(self, index)

    completions.Completion.alone = alone


@mutant("G11", "are there")
def generates_on_when_the_reader_of_lines_has_left(options):
    async def sent(self, scope, receive, send):
        parts = [part async for part in self.body_iterator]
        await Response(b"".join(parts), media_type=self.media_type)(scope, receive, send)

    streaming.LineStream.__call__ = sent


@mutant("G6", "^200 ")
def streams_what_is_to_come_as_it_completes(options):
    without_checking("as_completed")
