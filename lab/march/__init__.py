"""MARCH: the world of symbols, and the three-role checker as a detector."""
