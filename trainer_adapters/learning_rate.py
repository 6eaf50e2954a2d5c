"""The learning-rate schedule of `OptimizerSpec`, for every backend."""

from contracts.trainer import OptimizerSpec


def learning_rate(spec: OptimizerSpec, closed_steps: int) -> float:
    """Returns the learning rate of the step after `closed_steps` steps, skipped ones included.

    The first of `warmup_steps` has lr / warmup_steps, because a step at 0 would waste its rollouts. After the
    warm-up, it is lr, or decays linearly from lr to 0 over `decay_steps` if that is set.
    """
    warm = min(1.0, (closed_steps + 1) / max(1, spec.warmup_steps))
    if spec.decay_steps is None:
        return spec.lr * warm
    decayed = max(0, closed_steps - spec.warmup_steps) / max(1, spec.decay_steps)
    return spec.lr * warm * max(0.0, 1.0 - decayed)
