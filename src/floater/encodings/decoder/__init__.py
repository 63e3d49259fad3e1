"""Position models of decoders: they know the length of the finished text, or its order."""
