"""Log-probs of given tokens from servers that offer them, in either of two dialects.

vLLM returns `prompt_logprobs`: for each prompt token a map from token id to log-prob. The older
completions protocol has `echo`: the prompt comes back as if it had been sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.lm.base import Scores
from burnish.lm.failures import BadReply, Rejected, Unsupported
from burnish.lm.wire import Choice, check_logprobs

if TYPE_CHECKING:
    from burnish.lm.http import OpenAILM

PATH = "/completions"


async def score(
    lm: OpenAILM, prompt_ids: Sequence[int], response_ids: Sequence[int], top_k: int
) -> Scores:
    """Ask in one dialect, then in the other; `Unsupported` names both refusals."""
    if not prompt_ids or not response_ids:
        raise UserError("score needs at least one prompt token and one response token")
    ids = [*prompt_ids, *response_ids]
    refusals = []
    for dialect in (_by_prompt_logprobs, _by_echo):
        try:
            return await dialect(lm, ids, len(prompt_ids), top_k)
        except (Rejected, Unsupported) as error:
            refusals.append(str(error))
    raise Unsupported(
        f"{lm!r} cannot score given tokens ({'; '.join(refusals)}); "
        "score with an in-process model, or serve with vLLM"
    )


async def _by_prompt_logprobs(lm: OpenAILM, ids: list[int], prompt: int, top_k: int) -> Scores:
    choice = await _ask(lm, ids, prompt_logprobs=top_k)
    rows = choice.prompt_logprobs
    if rows is None:
        raise Unsupported("prompt_logprobs are ignored")
    if len(rows) != len(ids):
        raise BadReply(f"{lm!r}: prompt_logprobs for {len(rows)} of {len(ids)} tokens")
    values: list[float] = []
    tops: list[dict[int, float]] = []
    for given, row in zip(ids[prompt:], rows[prompt:], strict=True):
        if row is None or given not in row:
            raise BadReply(f"{lm!r}: prompt_logprobs lack token {given} itself")
        values.append(row[given].logprob)
        best = sorted(row, key=lambda token: -row[token].logprob)[:top_k]
        tops.append({token: row[token].logprob for token in best})
    check_logprobs(values, repr(lm))
    return Scores(tuple(values), tuple(tops) if top_k else ())


async def _by_echo(lm: OpenAILM, ids: list[int], prompt: int, top_k: int) -> Scores:
    if top_k:
        raise Unsupported("echo names alternatives as text, not as token ids")
    choice = await _ask(lm, ids, echo=True, logprobs=0)
    given = () if choice.logprobs is None else choice.logprobs.token_logprobs
    # The prompt and at most the one token that had to be sampled; anything else was not an echo.
    if len(given) not in (len(ids), len(ids) + 1):
        raise Unsupported("echo is ignored")
    values = given[prompt : len(ids)]
    if any(value is None for value in values):
        raise BadReply(f"{lm!r}: the echo has response tokens without a log-prob")
    known = tuple(value for value in values if value is not None)
    check_logprobs(known, repr(lm))
    return Scores(known)


async def _ask(lm: OpenAILM, ids: list[int], **fields: Any) -> Choice:
    body = {"model": lm.model, "prompt": ids, "max_tokens": 1, "temperature": 1.0}
    reply = await lm.post(PATH, body | fields, len(ids) + 1)
    if len(reply.choices) != 1:
        raise BadReply(f"{lm!r}: asked for one choice, got {len(reply.choices)}")
    return reply.choices[0]
