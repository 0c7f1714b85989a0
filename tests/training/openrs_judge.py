"""A judge of OpenRS by code: it prefers the text with more different words."""

import json
import re

FENCED = re.compile(r"=== response ([AB]) (\w+) ===\n(.*?)\n=== end of response", re.DOTALL)


def openrs_reply(prompt: str) -> str:
    """The verdict on the two texts of a question; none where one has the word 'silent'."""
    found = {letter: (mark, text) for letter, mark, text in FENCED.findall(prompt)}
    (mark, first), (_, second) = found["A"], found["B"]
    if "silent" in first + second:
        return "I would rather not."
    lead = len(set(first.split())) - len(set(second.split()))
    sign = (lead > 0) - (lead < 0)
    compared = {
        "title": "words",
        "type": "core",
        "evidence": first[:20] or second[:20],
        "winner": {1: "A", 0: "S", -1: "B"}[sign],
        "score": 2 * sign,
    }
    table = {"mark": mark, "question_analysis": {"analysis": "A story."}}
    return json.dumps({**table, "rubric_compares": [compared]})
