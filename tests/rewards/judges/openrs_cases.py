"""A judge that is told what to say, for the tests of OpenRS."""

import json
import re

from burnish.lm.replay import ScriptedLM
from burnish.records import Message, Response, Task
from burnish.rewards.judges.judge_model import JudgeModel

MARK = re.compile(r"=== (?:request|请求|principles|原则) ([0-9a-f]+) ===")
SHOWN = re.compile(r"=== (?:response|回答) ([AB]) [0-9a-f]+ ===\n(.*?)\n===", re.DOTALL)


def task(prompt="How do I boil an egg?", **fields):
    labels = ("answer",)
    return Task("t1", (Message("user", prompt),), fields, labels)


def answer(text, id=None):
    return Response(id or text[:8], text)


def mark_in(prompt):
    return MARK.search(prompt)[1]


def compare(title="fit", type="core", winner="A", score=1, evidence="boil", **more):
    return {
        "title": title, "type": type, "winner": winner, "score": score, "evidence": evidence,
        "reason": "because", **more,
    }  # fmt: skip


def reply(prompt, *compares, **more):
    table = {
        "mark": mark_in(prompt),
        "question_analysis": {"analysis": "wants an egg", "primary_need": "time"},
        "rubric_list": [{"title": c["title"], "type": "core"} for c in compares],
        "rubric_compares": list(compares),
        **more,
    }
    return f"Thinking about it.\n```json\n{json.dumps(table, ensure_ascii=False)}\n```"


def judge(say, **more):
    """A judge model whose reply is `say(prompt)`, in a repair round too."""
    return JudgeModel(ScriptedLM(lambda messages, _: say(messages[0].content)), **more)


def shown(prompt):
    """The two texts of a pair prompt."""
    return dict(SHOWN.findall(prompt))


def fair(prompt, quality=len):
    """Compares on one core criterion: the text of higher quality is better."""
    texts = shown(prompt)
    lead = quality(texts["A"]) - quality(texts["B"])
    sign = (lead > 0) - (lead < 0)
    return reply(prompt, compare(winner={1: "A", -1: "B", 0: "S"}[sign], score=sign))
