"""`test_public_arguments` spoils each argument of each call in turn.

`lets` names, by argument, the kinds of spoilt value that a function handles: they give a result,
every other kind is refused. `signed` and `shares` say which ranges a number has.
"""

from public import agents, bench, judges, models, policy, rewards, tools

ROOMS = (policy, rewards, judges, models, agents, bench, tools)
CASES = [case for room in ROOMS for case in room.CASES]
