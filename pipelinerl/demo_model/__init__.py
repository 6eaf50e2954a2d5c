"""Makes the small models that CPU runs train: most are taught a task, then made unreliable on purpose.

Called by the launcher, and by `python -m pipelinerl.demo_model`. Must not know how a run trains.
"""
