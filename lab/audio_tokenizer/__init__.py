"""Studies of the audio tokenizer."""
