"""What runs agents: a hosted verifier of the judging service, and the process that starts their programs."""
