"""Estimates the hours of a run by simulating its first steps, for its plan."""

from collections.abc import Iterator

from contracts.model_shape import ModelShape
from contracts.support.sizes import describe_bytes, describe_count
from extensions.simulator.inputs import PROMPT_TOKENS, check_samples, usual_lengths
from extensions.simulator.lengths import lengths_of
from extensions.simulator.rates import DEVICES, by_arithmetic
from extensions.simulator.run import SimulatedRun, StalledError
from pipelinerl.config import RunConfig
from pipelinerl.launcher.estimators import Estimator

RECORDED_BYTES = 25  # of a sampled token, in the rollouts and in the trainer's rows


class Simulated(Estimator):
    """Hours by the simulator, whose times are by arithmetic for a GPU.

    lengths: of answers, as `--lengths` of `python -m extensions.simulator`; null = its usual ones. success:
    share of right answers. device: a GPU of `extensions/simulator/rates.py`. steps: that are simulated.
    """

    def __init__(
        self, lengths: str | None = None, success: float = 0.5, device: str = "h100", steps: int = 10
    ):
        if isinstance(success, bool) or not isinstance(success, int | float) or not 0 <= success <= 1:
            raise ValueError(f"estimate.success={success}: from 0 to 1")
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"estimate.steps={steps}: 1 or more")
        if device not in DEVICES:
            raise ValueError(f"estimate.device={device}: one of {', '.join(DEVICES)}")
        self._lengths = lengths
        self._success = success
        self._device = device
        self._steps = steps

    def lines(self, config: RunConfig, shape: ModelShape) -> Iterator[str]:
        check_samples(config)
        described = self._lengths or usual_lengths(config)
        lengths = lengths_of(described, config.sampling.max_tokens)
        prompt = min(PROMPT_TOKENS, config.sampling.max_prompt_tokens)
        gpus = config.inference.gpus_per_server
        ranks = config.world.trainer_ranks
        rates = by_arithmetic(self._device, config, shape, prompt + lengths.mean / 2)
        few = config.model_copy(update={"max_steps": self._steps})
        try:
            measured = SimulatedRun(few, rates, lengths, self._success, prompt).run()
        except StalledError as error:
            raise ValueError(str(error)) from None
        step_s = measured.seconds / self._steps
        hours = step_s * config.max_steps / 3600
        on = config.world.servers * gpus + (0 if config.shares_gpus else ranks)
        sooner = "at most " if config.stop_at else ""
        share = ", server and trainer with half of it each" if config.shares_gpus else ""
        yield (
            f"time: {sooner}{hours:.1f} hours, {hours * on:.1f} GPU-hours on {on} {self._device}{share}: "
            f"{config.max_steps} steps of {step_s:.1f} s, simulated with answers of {described} tokens, "
            f"{self._success:.0%} of them right, without start and evaluations"
        )
        rollouts = config.max_steps * config.batch_size
        size = rollouts * (prompt + lengths.mean) * RECORDED_BYTES
        yield (
            f"records: {describe_bytes(int(size))} = {describe_count(rollouts)} rollouts of "
            f"{lengths.mean:.0f} tokens; streams.keep_bytes keeps less"
        )
