"""Broken servers. G9: answers in arrays. G6: arrays of nothing."""

import struct

from inference_adapters import completions, generation_routes
from tests.conformance.broken_servers.mutants import mutant


@mutant("G9", "prompt_token_ids \\[", part="arrays")
def writes_the_ids_of_arrays_from_the_other_end(options):
    completions.int32 = lambda values: completions._base64(struct.pack(f">{len(values)}i", *values))


@mutant("G9", "token_ids, .* log-probabilities", part="arrays")
def writes_the_log_probabilities_of_arrays_in_eight_bytes(options):
    completions.float32 = lambda values: completions._base64(struct.pack(f"<{len(values)}d", *values))


@mutant("G9", "log-probability", part="arrays")
def rounds_the_log_probabilities_of_arrays(options):
    right = completions.float32
    completions.float32 = lambda values: right([round(value, 2) for value in values])


@mutant("G9", "with arrays: true", part="arrays")
def ignores_that_arrays_are_asked_for(options):
    right = generation_routes._logprobs_form
    generation_routes._logprobs_form = lambda body: right(body.model_copy(update={"arrays": False}))


@mutant("G9", "weight_versions", part="arrays")
def streams_arrays_of_all_tokens_so_far(options):
    right = completions.Completion._choice

    def choice(self, index, token_ids, logprobs, likeliest, finish_reason):
        if self.form.logprobs == "arrays":
            token_ids = self.choices[index].token_ids
            logprobs = self.choices[index].logprobs
        return right(self, index, token_ids, logprobs, likeliest, finish_reason)

    completions.Completion._choice = choice


def without_checking(option: str) -> None:
    """Handles a request with this option as one without, when options are checked."""
    right = generation_routes.check_options
    generation_routes.check_options = lambda body: right(body.model_copy(update={option: False}))


@mutant("G6", "^200 ", part="requests")
def gives_arrays_without_log_probabilities(options):
    without_checking("arrays")
