"""The lines of a run whose output is a pipe or a file: one for each step and each evaluation. Pure."""

from collections.abc import Sequence

SEPARATOR = " | "
LEFT_OUT = {"held-out success", "weight updates"}  # evaluations have lines of their own
SUCCESS = "heldout_success"


def step_line(facts: Sequence[tuple[str, str]]) -> str:
    """Returns the line of a step. It begins with `step N/M`."""
    return SEPARATOR.join(f"{label} {text}" for label, text in facts if label not in LEFT_OUT)


def evaluation_line(numbers: dict[str, float], first: float | None) -> str:
    """Returns the line of an evaluation. It begins with `evaluation of version`.

    numbers: the actor's metrics of it. first: the success of the run's first evaluation.
    """
    sets = {name.removeprefix(f"{SUCCESS}_"): n for name, n in numbers.items() if name.startswith(SUCCESS)}
    success = sets.pop(SUCCESS)
    parts = [_versions(numbers), f"held-out success {success:.3f}"]
    parts += [f"{name} {share:.3f}" for name, share in sets.items()]
    parts += [f"at first {first:.3f}"] if first is not None else []
    if failed := numbers.get("heldout_failed"):
        parts += [f"{failed:.0f} attempts failed"]
    return SEPARATOR.join(parts)


def _versions(numbers: dict[str, float]) -> str:
    first = numbers.get("heldout_first_version", numbers["step"])
    last = numbers.get("heldout_last_version", first)
    which = f"version {first:.0f}" if first == last else f"versions {first:.0f} to {last:.0f}"
    return f"evaluation of {which}"
