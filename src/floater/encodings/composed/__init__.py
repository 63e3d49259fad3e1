"""Encodings made of others: several at once, or different ones in different blocks."""
