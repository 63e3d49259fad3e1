"""Comparisons of position models."""
