"""The pipeline: actor, preprocessor and trainer, streaming to each other without a stop."""
