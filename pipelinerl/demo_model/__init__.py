"""Makes the small models that CPU runs train: most are trained on a task, then made unreliable on purpose.

Called by `launch.py`, and by `python -m pipelinerl.demo_model`. Must not know how a run trains.
"""
