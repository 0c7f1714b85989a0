"""GAP: latents that a task needs, and what happens if they are fed wrongly."""
