"""The pipeline: the actor, the preprocessor and the trainer run concurrently, and stream to each other."""
