"""Is the response JSON, and does it fit the schema? Value 0 or 1.

Parsing and validation happen in a killable process: a schema may hold patterns, and a response
may be nested deeper than any stack.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig, IsolatedCheck, require
from burnish.rewards.checks.extract import short


class JsonSchemaConfig(CheckConfig, frozen=True, tag="json_schema"):
    """The response is JSON that fits `schema` (any JSON where it is empty): 1, else 0."""

    schema: dict[str, Any] = msgspec.field(default_factory=dict)
    """JSON schema that the value must fit; empty: any JSON."""
    where: Literal["whole", "fence"] = "fence"
    """`fence` reads the first ```json block where there is one; `whole` takes the text as it is."""
    timeout_s: float = 2.0
    """Seconds of computing for one response."""


class JsonSchema(IsolatedCheck[JsonSchemaConfig]):
    """Validates JSON in a child process."""

    child = "burnish.rewards.checks.json_schema:problem_of"

    def __init__(self, config: JsonSchemaConfig) -> None:
        super().__init__(config)
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for

        try:
            validator_for(config.schema).check_schema(config.schema)
        except SchemaError as error:
            where = "/".join(map(str, error.path)) or "its root"
            require(config, False, f"the schema is not valid at {where}: {error.message}.")

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        schema = self.config.schema
        jobs = [{"text": self._body(r.text), "schema": schema} for r in responses]
        return [
            self.decided(float(not outcome.value), outcome.value or "valid JSON that fits")
            if outcome.status == "ok"
            else self.undecided(outcome, "the response could not be validated")
            for outcome in await self.isolated(jobs)
        ]

    def _body(self, text: str) -> str:
        return strip_fence(text) if self.config.where == "fence" else text


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
        value = json.loads(text, parse_constant=_not_json)
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


def _not_json(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
