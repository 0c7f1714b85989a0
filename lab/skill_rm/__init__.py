"""Skill-RM: a reference in front of a judge, fair mode on stated demands, and masked failures."""
