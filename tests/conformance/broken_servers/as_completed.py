"""Broken servers. G9: choices as they complete. G6: in a stream."""

from inference_adapters import completions, generation_routes
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


@mutant("G6", "^200 ")
def streams_what_is_to_come_as_it_completes(options):
    without_checking("as_completed")
