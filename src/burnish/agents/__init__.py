"""Games made of roles on sessions, tools and the common trainer: one folder a method.

What a reward or a loss needs of a method lives in the rooms to the left.
"""
