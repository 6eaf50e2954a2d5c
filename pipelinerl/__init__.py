"""The pipeline: the actor, the preprocessor and the trainer, which stream to each other and run concurrently."""
