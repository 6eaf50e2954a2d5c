"""DiLoCo: the trainers of separate runs (islands) add up their progress every few steps.

Plugs into a run as its trainer (`trainer=diloco`), around another trainer. It must not know how a run trains:
a trainer is a flat float32 vector here.
"""
