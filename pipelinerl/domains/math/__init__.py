"""Mathematical problems from data sets, whose boxed answers math-verify judges."""
