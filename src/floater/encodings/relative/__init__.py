"""Position models that see how far apart two tokens stand."""
