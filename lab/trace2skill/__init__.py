"""Studies of Trace2Skill."""
