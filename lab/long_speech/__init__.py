"""Long speech: scenes with a plan beside plain concatenation, dimension dropout, and plans beside none."""
