"""DiLoCo: the trainers of separate runs (islands) merge their updates every few steps.

Plugs into a run as its trainer (`trainer=diloco`), around another trainer. Must not know how a run trains: a
trainer is a flat float32 vector here.
"""
