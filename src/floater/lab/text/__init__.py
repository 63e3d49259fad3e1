"""Text to tokens and back: byte-level BPE, Moses, vocabularies of words."""
