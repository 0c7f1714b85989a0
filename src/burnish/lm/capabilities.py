"""What a server can do beyond the plain protocol, and log-probs of given tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from burnish.errors import UserError
from burnish.lm.base import Scores, TokenIds
from burnish.lm.failures import BadReply, Rejected, Unsupported
from burnish.lm.wire import Choice, check_logprobs

if TYPE_CHECKING:
    from burnish.lm.http import OpenAILM


class Capabilities(Struct, frozen=True, kw_only=True):
    """What a server is taken to do: `n` alone, unless told otherwise."""

    n: bool = True
    """Several completions of one request."""
    logprobs: bool = False
    token_ids: bool = False
    """The sampled token ids: what training needs."""


PATH = "/completions"


async def score(lm: OpenAILM, prompt_ids: TokenIds, response_ids: TokenIds) -> Scores:
    """Ask in one dialect, then in the other; `Unsupported` names both refusals."""
    if not prompt_ids or not response_ids:
        raise UserError("score needs at least one prompt token and one response token")
    ids = [*prompt_ids, *response_ids]
    refusals = []
    for dialect in (_by_prompt_logprobs, _by_echo):
        try:
            return await dialect(lm, ids, len(prompt_ids))
        except (Rejected, Unsupported) as error:
            refusals.append(str(error))
    raise Unsupported(
        f"{lm!r} cannot score given tokens ({'; '.join(refusals)}); score with an in-process model"
    )


async def _by_prompt_logprobs(lm: OpenAILM, ids: list[int], prompt: int) -> Scores:
    choice = await _ask(lm, ids, prompt_logprobs=0)
    if choice.prompt_logprobs is None:
        raise Unsupported("prompt_logprobs are ignored")
    rows = [row or {} for row in choice.prompt_logprobs]
    if len(rows) != len(ids) or any(id_ not in rows[i] for i, id_ in enumerate(ids) if i >= prompt):
        raise BadReply(f"{lm!r}: prompt_logprobs lack some of {len(ids)} tokens")
    values = [rows[place][ids[place]].logprob for place in range(prompt, len(ids))]
    check_logprobs(values, repr(lm))
    return Scores(tuple(values))


async def _by_echo(lm: OpenAILM, ids: list[int], prompt: int) -> Scores:
    choice = await _ask(lm, ids, echo=True, logprobs=0)
    given = () if choice.logprobs is None else choice.logprobs.token_logprobs
    # The prompt and at most the one token that had to be sampled; anything else was not an echo.
    if len(given) not in (len(ids), len(ids) + 1):
        raise Unsupported("echo is ignored")
    known = tuple(value for value in given[prompt : len(ids)] if value is not None)
    if len(known) < len(ids) - prompt:
        raise BadReply(f"{lm!r}: the echo has response tokens without a log-prob")
    check_logprobs(known, repr(lm))
    return Scores(known)


async def _ask(lm: OpenAILM, ids: list[int], **fields: Any) -> Choice:
    body = {"model": lm.model, "prompt": ids, "max_tokens": 1, "temperature": 1.0}
    reply = await lm.post(PATH, body | fields, len(ids) + 1)
    if len(reply.choices) != 1:
        raise BadReply(f"{lm!r}: asked for one choice, got {len(reply.choices)}")
    return reply.choices[0]
