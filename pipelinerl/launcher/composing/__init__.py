"""Makes the configuration of a run from `conf/` and the command line, and describes it for `--help`."""
