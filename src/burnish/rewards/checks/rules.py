"""Checks of form: tags, length, a pattern, JSON and its schema, and what an environment gave.

Patterns and JSON are looked at in a killable process with a clock: a pattern can take exponential time
on a hostile text, Python's matcher cannot be interrupted, and JSON may be nested deeper than any stack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from burnish.boundary import Count, Number, Seconds
from burnish.errors import ArgumentError
from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig, IsolatedCheck, RuleCheck
from burnish.rewards.checks.extract import short
from burnish.rewards.checks.texts import words

FIND = "burnish.rewards.checks.rules:find"
TagName = Annotated[str, Meta(pattern=r"^[\w-]+$", description="a plain name")]


class TagsConfig(CheckConfig, frozen=True, tag="tags"):
    """`<think>...</think><answer>...</answer>` and nothing else, each once and in order; in [0, 1]."""

    tags: Annotated[tuple[TagName, ...], Meta(min_length=1)] = ("think", "answer")
    """Names of the tags, in their order."""
    outside: bool = False
    """True allows text between and around the tags."""
    empty: bool = False
    """True allows a pair of tags with nothing inside."""
    partial: bool = False
    """Pay the share of tags that are right, for a model that has none of the format yet. Off by
    default, because partial credit is what gets gamed."""

    def check(self) -> None:
        if len(set(self.tags)) < len(self.tags):
            raise ArgumentError(f"tags: got {', '.join(self.tags)}, expected each of them once")


class Tags(RuleCheck[TagsConfig]):
    """Checks the shape of a response."""

    def judge(self, task: Task, response: Response) -> Reward:
        text, config = response.text, self.config
        problems: list[str] = []
        end, outside = 0, ""
        for tag in config.tags:
            problem, start, stop = self._one(text, tag, end)
            if problem:
                problems.append(problem)
                continue
            outside += text[end:start]
            end = stop
        outside += text[end:]
        right = float(len(config.tags) - len(problems))
        if not problems and not config.outside and outside.strip():
            problems.append("there is text outside the tags")
            right -= 0.5
        saw = "; ".join(problems) or f"found {', '.join(config.tags)} once, in order"
        value = right / len(config.tags) if config.partial else float(not problems)
        return self.decided(value, saw)

    def _one(self, text: str, tag: str, after: int) -> tuple[str, int, int]:
        """A problem with one tag (or ""), and where its pair starts and ends."""
        opening, closing = f"<{tag}>", f"</{tag}>"
        for mark in (opening, closing):
            count = text.count(mark)
            if count != 1:
                return f"{mark} stands {count} times", after, after
        start, stop = text.find(opening), text.find(closing)
        if stop < start:
            return f"{closing} comes before {opening}", after, after
        if start < after:
            return f"{opening} is out of order or inside another tag", after, after
        inside = text[start + len(opening) : stop]
        if not self.config.empty and not inside.strip():
            return f"{opening} is empty", after, after
        return "", start, stop + len(closing)


class LengthConfig(CheckConfig, frozen=True, tag="length"):
    """A range of words, characters or tokens: 1 inside, down to 0 over soft edges."""

    unit: Literal["words", "characters", "tokens"] = "words"
    """What is counted."""
    min: Count = 0
    """Least length of the range."""
    max: Count | None = None
    """Greatest length of the range; none: no bound."""
    edge: Count = 0
    """How many units outside the range the value takes to fall from 1 to 0; 0 is a hard edge."""

    def check(self) -> None:
        if (not self.min and self.max is None) or (self.max is not None and self.min > self.max):
            raise ArgumentError(
                f"min: got {self.min} with max {self.max}, expected one of them, min at most max"
            )


class Length(RuleCheck[LengthConfig]):
    """Counts and compares with a range."""

    def judge(self, task: Task, response: Response) -> Reward:
        config = self.config
        if config.unit == "tokens" and response.tokens == 0 and response.text:
            return self.abstained("the response does not say how many tokens it has")
        text = response.text
        counted = words(text) if config.unit == "words" else text
        count = response.tokens if config.unit == "tokens" else len(counted)
        over = 0 if config.max is None else count - config.max
        outside = max(0, config.min - count, over)
        value = max(0.0, 1.0 - outside / config.edge) if config.edge else float(outside == 0)
        top = "any" if config.max is None else str(config.max)
        return self.decided(value, f"{count} {config.unit}; wanted {config.min} to {top}")


class RegexConfig(CheckConfig, frozen=True, tag="regex"):
    """The pattern occurs (or, with `forbid`, does not): 1, else 0."""

    pattern: str
    """Regular expression of Python; `(?m)` and `(?s)` at its start set its flags."""
    mode: Literal["search", "fullmatch"] = "search"
    """`search`: anywhere; `fullmatch`: the whole text."""
    ignore_case: bool = False
    """Letters match in either case."""
    forbid: bool = False
    """Pay where the pattern does not occur."""
    timeout_s: Seconds = 1.0
    """Seconds of computing for one response."""

    def check(self) -> None:
        check_pattern(self.pattern)


class Regex(IsolatedCheck[RegexConfig]):
    """Searches a pattern in a child process."""

    child = FIND

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        config = self.config
        told = {
            "pattern": config.pattern,
            "flags": int(re.IGNORECASE * config.ignore_case),
            "mode": config.mode,
        }
        jobs = [{**told, "text": response.text} for response in responses]
        rewards = []
        for outcome in await self.isolated(jobs):
            if outcome.status != "ok":
                rewards.append(self.undecided(outcome, f"pattern {short(config.pattern)!r}"))
                continue
            found: str | None = outcome.value
            saw = "no match" if found is None else f"matched {short(found)!r}"
            value = float((found is None) == config.forbid)
            rewards.append(self.decided(value, f"{saw} of pattern {short(config.pattern)!r}"))
        return rewards


def check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ArgumentError(
            f"pattern: got {pattern!r}, expected a regular expression ({error})"
        ) from None


def find(pattern: str, flags: int, mode: str, text: str) -> str | None:
    """The first match (its start, at most 400 characters), or None. Runs in the child."""
    compiled = re.compile(pattern, flags)
    match = compiled.fullmatch(text) if mode == "fullmatch" else compiled.search(text)
    return match.group()[:400] if match else None


class JsonSchemaConfig(CheckConfig, frozen=True, tag="json_schema"):
    """The response is JSON that fits `schema` (any JSON where it is empty): 1, else 0."""

    schema: dict[str, object] = msgspec.field(default_factory=dict)
    """JSON schema that the value must fit; empty: any JSON."""
    where: Literal["whole", "fence"] = "fence"
    """`fence` reads the first ```json block where there is one; `whole` takes the text as it is."""
    timeout_s: Seconds = 2.0
    """Seconds of computing for one response."""

    def check(self) -> None:
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for

        try:
            validator_for(self.schema).check_schema(self.schema)
        except SchemaError as error:
            where = "/".join(map(str, error.path)) or "its root"
            raise ArgumentError(
                f"schema: is not valid at {where}: {error.message}, expected a JSON schema"
            ) from None


class JsonSchema(IsolatedCheck[JsonSchemaConfig]):
    """Validates JSON in a child process."""

    child = "burnish.rewards.checks.rules:problem_of"

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        body = strip_fence if self.config.where == "fence" else str
        jobs = [{"text": body(r.text), "schema": self.config.schema} for r in responses]
        return [
            self.decided(float(not outcome.value), outcome.value or "valid JSON that fits")
            if outcome.status == "ok"
            else self.undecided(outcome, "the response could not be validated")
            for outcome in await self.isolated(jobs)
        ]


def strip_fence(text: str) -> str:
    """The inside of the first fenced block, or the text itself where there is none."""
    start = text.find("```")
    end = text.find("```", start + 3)
    if start < 0 or end < 0:
        return text
    first, _, rest = text[start + 3 : end].partition("\n")
    return rest if first.strip().isalnum() or not first.strip() else text[start + 3 : end]


def problem_of(text: str, schema: dict[str, Any]) -> str:
    """What keeps the text from fitting the schema, or an empty string. Runs in the child."""
    from jsonschema.exceptions import best_match
    from jsonschema.validators import validator_for

    try:
        value = json.loads(text, parse_constant=not_json)
    except RecursionError:
        return "not JSON that can be read: nested too deeply"
    except ValueError as error:
        return f"not JSON: {short(str(error))}"
    try:
        misfit = best_match(validator_for(schema)(schema).iter_errors(value))
    except RecursionError:
        return "not JSON that can be checked: nested too deeply"
    if misfit is None:
        return ""
    where = "/".join(map(str, misfit.absolute_path)) or "the root"
    return f"does not fit at {short(where)}: {short(misfit.message, 200)}"


def prepare_child() -> None:
    """Import the library before the first job."""
    import jsonschema.validators  # noqa: F401


def not_json(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


class EnvConfig(CheckConfig, frozen=True, tag="env"):
    """A reward that `[rollout] kind = "env"`, `"function"` or `"agent"` brought with it; any finite
    value."""

    key: str = ""
    """Its name among the environment's rewards; the reward's own name where empty."""
    otherwise: Number | None = None
    """The value where the environment gave none, such as 0.0 for a game that was never won."""


class EnvReward(RuleCheck[EnvConfig]):
    def judge(self, task: Task, response: Response) -> Reward:
        key = self.config.key or self.name
        given = response.info.get("rewards", {})
        value = given.get(key, self.config.otherwise)
        if value is None:
            known = ", ".join(given) or "none"
            return self.abstained(f"the environment gave no reward '{key}'; it gave {known}")
        told = response.info.get("reasons")
        why = told.get(key) if isinstance(told, Mapping) else None
        reason = why if isinstance(why, str) else ""
        return self.decided(float(value), f"{key} = {value}", reason=reason)
