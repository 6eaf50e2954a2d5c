"""Makes the configuration of a run from `conf/` and the command line, and describes it for `--help`.

Called by `launch.py`. Must not know how a configuration is checked or run.
"""
