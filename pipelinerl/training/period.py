"""The rule for trainers whose steps, every `period` of them, change the weights in another way than AdamW.

The launcher refuses a run that breaks it, and the learner does so for a period that only a started trainer
knows.
"""


def conflict(trainer: object, epochs: int) -> str | None:
    """Returns why the period of a trainer does not suit a step's `epochs`, or None.

    The epochs of a step are compared with the policy before it, so only AdamW may change it in between.
    """
    period = getattr(trainer, "period", None)
    if not period or period % epochs == 0:
        return None
    return (
        f"trainer: {type(trainer).__name__} has a period of {period} updates, which is no multiple of "
        f"epochs={epochs}: weights would change in another way than AdamW's between two epochs of a step"
    )
