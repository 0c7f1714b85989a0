"""Rewards of the games in `burnish.tasks.examples`, as plain functions of text and task fields."""
