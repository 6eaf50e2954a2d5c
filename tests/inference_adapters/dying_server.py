"""A server on transformers whose generation ends for good when it samples at a certain temperature."""

from inference_adapters.transformers import __main__, runner

DEADLY = 1.75  # the temperature at which it ends


def deadly_sample(logits, sampling, generators):
    if any(row.temperature == DEADLY for row in sampling):
        raise ArithmeticError("the sampler is broken\nin two lines")
    return sampled(logits, sampling, generators)


if __name__ == "__main__":
    sampled, runner.sample = runner.sample, deadly_sample
    __main__.main()
