"""TUPE, its comparisons, and the reset of [CLS]."""
