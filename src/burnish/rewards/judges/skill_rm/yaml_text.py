"""YAML as plain data: no tags, no aliases, no key twice.

    value, problem = read_yaml("name: code")

Aliases are refused because nine lines of them expand to billions of values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

DEEPEST = 20
"""Levels of nesting; an index needs three."""


class Loaded(NamedTuple):
    """A value, and in one line why there is none."""

    value: Any
    problem: str = ""


def read_yaml(text: str) -> Loaded:
    """The value of one YAML document, or the problem with it."""
    import yaml

    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                return Loaded(None, f"line {line}: anchors and aliases are not allowed")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > DEEPEST:
                return Loaded(None, f"line {line}: nested deeper than {DEEPEST} levels")
        twice = _key_twice(yaml.compose(text, Loader=yaml.SafeLoader))
        if twice:
            return Loaded(None, twice)
        return Loaded(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        said = getattr(error, "problem", None) or str(error)
        return Loaded(None, f"not YAML: {place}{' '.join(str(said).split())[:200]}")


def _key_twice(node: Any) -> str:
    """The first key that stands twice in one table; YAML would silently keep the last."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        found = (_key_twice(item) for item in node.value)
        return next((problem for problem in found if problem), "")
    if not isinstance(node, yaml.MappingNode):
        return ""
    seen: set[str] = set()
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                return f"line {key.start_mark.line + 1}: '{key.value}' stands twice"
            seen.add(key.value)
        problem = _key_twice(value)
        if problem:
            return problem
    return ""
