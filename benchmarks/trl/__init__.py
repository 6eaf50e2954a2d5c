"""This project against TRL's GRPOTrainer: the same model, task, batch and machine."""
