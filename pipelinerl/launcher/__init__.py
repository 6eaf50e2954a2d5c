"""The implementation of `launch.py`: `composing -> run -> prepare -> supervising`.

`composing/` makes the configuration from `conf/` and the command line. `run.py` has `prepare.py` check it
(`checking/`), find the model, and place the jobs (`resource_requests.py`) on an executor (`executors/`).
`jobs.py` plans their commands. `run.py` then opens the streams, resumes a stopped run (`resume.py`), and has
`supervising/` run the jobs to their end. `plan.py` prints the prepared run instead.

Called by `launch.py` and other commands; no process of a run imports it. Must not know an extension.
"""
