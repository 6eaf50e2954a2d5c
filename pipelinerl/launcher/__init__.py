"""What `launch.py` does, as one story: `compose -> run -> prepare -> placing -> supervising`.

`composing/` makes the configuration from `conf/` and the command line. `run.py` has `prepare.py` check it
(`checking/`), find its model, plan its jobs (`wants.py`, `jobs.py`), and give each a place (`placing.py`) on
an executor (`executors/`). What the processes get is a `ResolvedRun`, made there. `run.py` then opens the
streams, resumes a run that has begun before (`resume.py`), and has `supervising/` run the jobs to their end.
`plan.py` prints what was prepared instead.

Called by `launch.py`, and by commands that need a part of it. Must not know what the processes compute; no
process of a run imports it.
"""
