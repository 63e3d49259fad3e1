"""Fine-tuning of checkpoints, plugged or not: what GLUE, SQuAD, RACE and models of plain text share."""
