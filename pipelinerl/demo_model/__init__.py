"""Makes the small model that the CPU demo trains: taught a task, then made unreliable on purpose."""
