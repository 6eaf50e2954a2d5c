"""What is done with a run's records, beside the run: shown, followed, copied into other formats. Called by
users and by the launcher, in processes of their own. Must not know how to change a run: it only reads one."""
