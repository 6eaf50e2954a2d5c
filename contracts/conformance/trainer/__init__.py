"""Checks guarantees T1 to T7 and T9 of the trainer contract on any `TrainerWorker`, in new processes."""
