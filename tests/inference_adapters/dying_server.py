"""A server on transformers whose generation ends for good when it samples at a certain temperature."""

from inference_adapters.transformers import __main__, sampling

DEADLY = 1.75  # the temperature at which it ends


def deadly_sample(logits, rows, generators):
    if any(row.temperature == DEADLY for row in rows):
        raise ArithmeticError("the sampler is broken\nin two lines")
    return sampled(logits, rows, generators)


if __name__ == "__main__":
    sampled, sampling.sample = sampling.sample, deadly_sample
    __main__.main()
