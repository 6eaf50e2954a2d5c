"""The pipeline: the actor, the preprocessor and the trainer, which run concurrently and stream to each other.
"""
