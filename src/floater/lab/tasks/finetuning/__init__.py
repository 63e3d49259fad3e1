"""Fine-tuning of checkpoints, plugged or not: shared parts of GLUE, SQuAD, RACE and plain text tasks."""
