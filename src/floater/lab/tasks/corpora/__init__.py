"""Readers of data sets' files, and seeded generators of sentences and problems."""
