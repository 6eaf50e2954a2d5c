"""The rule for trainers that change the weights otherwise than by their own updates, every `period` of them.

The launcher refuses a run that breaks it, and the learner does so for a period that only a started trainer
knows.
"""


def conflict(period: int | None, epochs: int) -> str | None:
    """Returns why a trainer's period does not suit a step's `epochs`, or None.

    A step's epochs compare with the policy before the step, so only AdamW may change the weights between them.
    """
    if not period or period % epochs == 0:
        return None
    return (
        f"the trainer changes the weights otherwise after every {period} updates, which epochs={epochs} does "
        "not divide: that would be between two epochs of a step"
    )
