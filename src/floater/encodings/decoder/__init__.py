"""Position models of decoders: they know how long the text shall become."""
