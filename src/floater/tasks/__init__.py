"""Tasks: data in, a trained model and its scores out."""
