"""Games made of roles: several players of one model, each with its own view, trained together.

One folder a method. What a reward or a loss needs of a method lives in the rooms to the left.
"""
