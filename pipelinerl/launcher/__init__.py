"""What `launch.py` does: compose and check a configuration, plan the jobs, start and supervise them, resume.

Called by `launch.py` and by the commands beside it. Must not know what the processes compute; no process of
a run imports it.
"""
