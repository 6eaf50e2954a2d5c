"""What to train on: problems, and how an attempt at one is made and judged."""
