"""The calls of `import burnish`: train, score, judge, evaluate, generate, compare and sweep."""
