"""What `launch.py` does, as one story: `compose -> run -> prepare -> place -> supervise`.

`composing/` makes the configuration from `conf/` and the command line. `run.py` has `prepare.py` check it
(`checking/`), find its model, plan its jobs (`wants.py`, `jobs.py`) and give each a place (`placing.py`) on an
executor (`executors/`). `run.py` then opens the streams, resumes the run if it has begun before (`resume.py`),
and has `supervising/` run the jobs to their end. `plan.py` prints what was prepared instead.

Called by `launch.py`, and by commands that need a part of it. Must not know what the processes compute; no
process of a run imports it.
"""
