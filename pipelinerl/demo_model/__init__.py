"""Makes the small models that CPU runs train: most are taught a task, then made unreliable on purpose."""
