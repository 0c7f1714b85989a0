"""Reports of analysts: any level of heading, code, thoughts, fences."""

import pytest

from burnish.agents.trace2skill import parse_failures, parse_successes

REPORT = """<think># Failure Cause Item 9</think>
# Failure Cause Item 1
## Title
Wrong sheet
## Description
It wrote to the first sheet.
## Content
The task named another one.
### A detail
kept

---

## Failure Memory Item 2
### Title
Read back
### Content
```python
# Failure Cause Item 3
```
"""


def test_causes_and_lessons_of_any_level():
    assert parse_failures(REPORT) == [
        {
            "type": "failure_cause", "number": 1, "title": "Wrong sheet",
            "description": "It wrote to the first sheet.",
            "content": "The task named another one.\n### A detail\nkept",
        },
        {
            "type": "failure_memory", "number": 2, "title": "Read back", "description": "",
            "content": "```python\n# Failure Cause Item 3\n```",
        },
    ]  # fmt: skip
    assert parse_successes(REPORT) == []


@pytest.mark.parametrize("level", ["#", "##", "####"])
def test_successes(level):
    text = (
        f"```markdown\n{level} Success Memory Item 1\n{level}# Title\nT\n{level}# Content\nC\n```"
    )
    assert parse_successes(text) == [
        {"type": "success_memory", "number": 1, "title": "T", "description": "", "content": "C"}
    ]


def test_other_sections_are_kept_where_they_say_something():
    text = (
        "# Failure Cause Item 1\n## Title\nT\n## Relation to Skill\nnone yet\n## Skill Reflection\n"
    )
    (item,) = parse_failures(text)
    assert item["relation_to_skill"] == "none yet"
    assert "skill_reflection" not in item
