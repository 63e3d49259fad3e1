"""Position models of decoders: they depend on the length of the finished text, or on its order."""
