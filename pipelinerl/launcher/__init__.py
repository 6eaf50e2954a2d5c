"""What `launch.py` does: compose and check a configuration, plan the jobs, start and supervise them, resume.

Called by `launch.py`, and by the commands `replay` and `difficulty`. Must not know what the processes
compute; no process of a run imports it.
"""
