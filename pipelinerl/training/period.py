"""Checks a trainer's `period` against `epochs`.

`TrainerWorker.period` is the number of updates between two updates that also change the weights outside of
AdamW, such as an outer optimizer's. The launcher makes the check before the start. The learner repeats it for
trainers that know their period only once they are initialised.
"""


def conflict(trainer: object, epochs: int) -> str | None:
    """Returns a message if the trainer's period conflicts with `epochs`, or None.

    Only AdamW may change the policy within a step, because all epochs use the same proximal policy.
    """
    period = getattr(trainer, "period", None)
    if not period or period % epochs == 0:
        return None
    return (
        f"trainer: {type(trainer).__name__} has a period of {period} updates, which is no multiple of "
        f"epochs={epochs}: weights would change in another way than AdamW's between two epochs of a step"
    )
