"""Process reward models on real step labels."""
