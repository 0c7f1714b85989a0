"""What a server can do beyond the plain protocol, found out by asking it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from burnish.lm.failures import BadReply, Rejected, ServerFailed
from burnish.lm.wire import Reply

if TYPE_CHECKING:
    from burnish.lm.http import OpenAILM

QUESTION = [{"role": "user", "content": "Write ten random words."}]
IDS = [1, 2, 3]


class Abilities(Struct, frozen=True, kw_only=True):
    """The answers. A server that was not asked is taken to know `n` alone."""

    models: tuple[str, ...] = ()
    """As the server lists them; empty where it lists none."""
    n: bool = True
    """Several completions in one request."""
    temperature: bool = True
    """Sampling at temperature 1 is not greedy."""
    seed: bool = False
    """The same seed gave the same text again."""
    logprobs: bool = False
    """The log-prob of each sampled token."""
    token_ids: bool = False
    """The sampled token ids: what training needs."""
    token_prompts: bool = False
    """Token ids as prompts."""
    prompt_logprobs: bool = False
    """Log-probs of given tokens: what `score` needs."""
    notes: tuple[str, ...] = ()
    """Why each missing ability is missing, in the server's words where it said something."""


async def probe(lm: OpenAILM) -> Abilities:
    """Ask a server for each ability in turn; only a server that does not answer raises."""
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
    return Abilities(
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
