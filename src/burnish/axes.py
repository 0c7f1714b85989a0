"""Axis letters that end tensor names, listed once.

`logprobs_BT` is rollouts by response tokens; `rewards_BK` is rollouts by rewards.

| letter | axis                                            |
|--------|-------------------------------------------------|
| B      | rollouts of a batch                             |
| G      | rollouts of one group (same prompt, same role)  |
| Q      | groups (queries) of a batch                     |
| K      | rewards                                         |
| P      | buckets of a group's pass rate                  |
| J      | steps of an answer, padded on the right          |
| T      | response tokens, padded on the right            |
| S      | tokens of a packed row (prompt and responses)   |
| R      | packed rows                                     |
| D      | hidden size                                     |
| H      | attention heads                                 |
| V      | vocabulary                                      |
"""
