"""What `extensions.islands.diloco` is made of: how the trainers of separate runs add up their progress.

It must not know how a run trains: a trainer is a flat float32 vector here.
"""
