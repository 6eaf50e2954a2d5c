"""Checks guarantees T1 to T7, T9 and T10 of the trainer contract on any `TrainerWorker`, in new processes."""
