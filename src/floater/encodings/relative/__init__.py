"""Position models that change attention by the distance, the side or the pair of two tokens."""
