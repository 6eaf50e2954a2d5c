"""A thousand conversations of each family whose tokenizer can be fetched: `make soak-conversations`."""

import pytest

from tests.conversations.families_table import try_conversations
from tests.pipeline.runs import SEED


@pytest.mark.long
def test_each_next_prompt_keeps_what_was_sampled():
    assert try_conversations(1000, SEED) == 0
