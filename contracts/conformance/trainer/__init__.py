"""The trainer contract, executable: T1 ... T7 against any `TrainerWorker`, in fresh processes of its own."""
