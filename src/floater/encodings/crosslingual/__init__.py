"""Position models for texts of several languages."""
