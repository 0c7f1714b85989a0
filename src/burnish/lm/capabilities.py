"""What a server can do beyond the plain protocol, found out by asking it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from burnish.errors import UserError
from burnish.lm.base import Scores
from burnish.lm.failures import BadReply, Rejected, ServerFailed, Unsupported
from burnish.lm.wire import Choice, Reply, check_logprobs

if TYPE_CHECKING:
    from burnish.lm.http import OpenAILM

QUESTION = [{"role": "user", "content": "Write ten random words."}]
IDS = [1, 2, 3]


class Capabilities(Struct, frozen=True, kw_only=True):
    """The answers. A server that was not asked is taken to know `n` alone."""

    models: tuple[str, ...] = ()
    """As the server lists them; empty where it lists none."""
    n: bool = True
    temperature: bool = True
    seed: bool = False
    """The same seed gave the same text again."""
    logprobs: bool = False
    token_ids: bool = False
    """The sampled token ids: what training needs."""
    token_prompts: bool = False
    prompt_logprobs: bool = False
    """Log-probs of given tokens: what `score` needs."""
    notes: tuple[str, ...] = ()
    """Why each missing capability is missing, in the server's words where it said something."""


async def probe(lm: OpenAILM) -> Capabilities:
    """Ask a server for each capability in turn; only a server that does not answer raises."""
    notes: list[str] = []
    try:
        models = await lm.list_models()
    except (Rejected, ServerFailed, BadReply) as error:
        models = ()
        notes.append(f"models: {error}")

    async def ask(label: str, *, chat: bool = True, **fields: Any) -> Reply | None:
        shared = {"model": lm.model, "max_tokens": 1, "temperature": 1.0, "seed": 1}
        prompt = {"messages": QUESTION} if chat else {"prompt": IDS}
        path = "/chat/completions" if chat else "/completions"
        try:
            return await lm.post(path, shared | prompt | fields)
        except (Rejected, BadReply) as error:
            notes.append(f"{label}: {error}")
            return None

    def note(label: str, reply: Reply | None, found: bool, what: str) -> bool:
        if reply is not None and not found:
            notes.append(f"{label}: {what}")
        return found

    # The plain request comes first: if even that is refused, the caller should see why.
    shared = {"model": lm.model, "messages": QUESTION, "temperature": 1.0, "max_tokens": 16}
    first = await lm.post("/chat/completions", shared | {"seed": 1})
    again = await ask("seed", max_tokens=16)
    other = await ask("temperature", max_tokens=16, seed=2)
    several = await ask("n", n=2)
    tokens = await ask("logprobs", logprobs=True, top_logprobs=1)
    ids = await ask("token_ids", return_token_ids=True)
    given = await ask("token_prompts", chat=False)
    scored = await ask("prompt_logprobs", chat=False, prompt_logprobs=0) if given else None
    same = again is not None and _texts(again) == _texts(first)
    varied = other is not None and _texts(other) != _texts(first)
    return Capabilities(
        models=models,
        n=note("n", several, several is not None and len(several.choices) == 2, "ignored"),
        temperature=note(
            "temperature", other, varied or not same, "two seeds gave the same text: greedy"
        ),
        seed=note("seed", again, same and varied, "no seeded sampling was seen"),
        logprobs=note("logprobs", tokens, _has(tokens, "logprobs"), "ignored"),
        token_ids=note("token_ids", ids, _has(ids, "token_ids"), "ignored"),
        token_prompts=given is not None,
        prompt_logprobs=note("prompt_logprobs", scored, _has(scored, "prompt_logprobs"), "ignored"),
        notes=tuple(notes),
    )


def _has(reply: Reply | None, field: str) -> bool:
    choices = reply.choices if reply is not None else ()
    return bool(choices) and all(getattr(choice, field) is not None for choice in choices)


def _texts(reply: Reply) -> list[str | None]:
    return [choice.message.content if choice.message else choice.text for choice in reply.choices]


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
        f"{lm!r} cannot score given tokens ({'; '.join(refusals)}); score with an in-process model"
    )


async def _by_prompt_logprobs(lm: OpenAILM, ids: list[int], prompt: int, top_k: int) -> Scores:
    choice = await _ask(lm, ids, prompt_logprobs=top_k)
    if choice.prompt_logprobs is None:
        raise Unsupported("prompt_logprobs are ignored")
    rows = [row or {} for row in choice.prompt_logprobs]
    if len(rows) != len(ids) or any(id_ not in rows[i] for i, id_ in enumerate(ids) if i >= prompt):
        raise BadReply(f"{lm!r}: prompt_logprobs lack some of {len(ids)} tokens")
    values: list[float] = []
    tops: list[dict[int, float]] = []
    for given, row in zip(ids[prompt:], rows[prompt:], strict=True):
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
