"""A scripted policy with tokens for search self-play, and tasks of a small world."""

from __future__ import annotations

import random
from collections.abc import Callable

from tokenizers import AddedToken, Tokenizer as Backend, decoders, models, pre_tokenizers

from burnish.agents.ssp.game import SearchSelfPlay
from burnish.agents.ssp.world import facts_of, make, parse_question, propose_script, world_of
from burnish.lm.base import Completion, Sampling
from burnish.lm.tokenizer import Tokenizer
from burnish.records import Finish, Message, Task
from burnish.rollouts.env import FunctionRollout

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SMALL = {"seed": 3, "people": 24, "companies": 5, "cities": 8}
WORLD = world_of(**SMALL)
CODE = {"corpus_options": SMALL, "reader": "code", "reader_path": "burnish.agents.ssp.world:read"}


def tokenizer() -> Tokenizer:
    """One token a byte, chat markup as in ChatML."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    marks = ("<|im_end|>", "<|im_start|>")
    backend.add_special_tokens([AddedToken(m, special=True, normalized=False) for m in marks])
    return Tokenizer(backend, special_tokens={"eos_token": "<|im_end|>"}, chat_template=CHATML)


class Policy:
    """Says what `script(conversation, seed)` says, stops at stop strings, and returns tokens."""

    name = "policy"

    def __init__(self, script: Callable[[list[tuple[str, str]], int], str]) -> None:
        self.script, self.tokenizer = script, tokenizer()
        self.calls: list[tuple[str, Sampling]] = []

    async def sample(self, prompt, sampling: Sampling) -> list[Completion]:
        text = self.tokenizer.decode(prompt, skip_special=False)
        self.calls.append((text, sampling))
        return [self._one(text, sampling, index) for index in range(sampling.n)]

    async def score(self, prompt_ids, response_ids, *, top_k=0):
        raise NotImplementedError

    def _one(self, prompt: str, sampling: Sampling, index: int) -> Completion:
        said = self.script(turns(prompt), sampling.seed + index)
        ends = [at for stop in sampling.stop if (at := said.find(stop)) >= 0]
        cut = min(ends, default=None)
        stop = "" if cut is None else next(s for s in sampling.stop if said.startswith(s, cut))
        text = said if cut is None else said[:cut]
        ids = self.tokenizer.encode(text + stop)
        if cut is None:
            ids = [*ids, *self.tokenizer.eos_ids[:1]]
        is_cut = len(ids) > sampling.max_tokens
        ids = tuple(ids[: sampling.max_tokens])
        return Completion(
            self.tokenizer.decode(ids) if is_cut else text, token_ids=ids,
            logprobs=(-0.5,) * len(ids), finish=Finish.LENGTH if is_cut else Finish.STOP,
        )  # fmt: skip


def turns(prompt: str) -> list[tuple[str, str]]:
    """Role and text of each message of a rendered conversation."""
    parts = prompt.split("<|im_start|>")[1:]
    return [
        (role, text.split("<|im_end|>")[0])
        for role, _, text in (part.partition("\n") for part in parts)
    ][:-1]


def clever(said: list[tuple[str, str]], seed: int) -> str:
    """Proposes as the templates do, and solves every question by search."""
    first, own = said[0][1], [text for role, text in said if role == "assistant"]
    if first.startswith("Write a question"):
        answer = first.splitlines()[0].rpartition(": ")[2]
        script = propose_script(WORLD, answer, 1, random.Random(1))
        replies = [m.text for m in script if m.role == "assistant"] or ["I give up."]
        return replies[len(own)]
    query = parse_question(first)
    place, facts = query.start, facts_of([text for role, text in said[1:] if role == "user"])
    for relation in query.path:
        if (place, relation) not in facts:
            return f"<think>Look.</think><search>{place}</search> and more"
        place = facts[place, relation]
    return f"<answer>{place}</answer>"


def settings(**more) -> FunctionRollout:
    given = {"samples": 3, "max_tokens": 4000, "path": "burnish.agents.ssp.game:SearchSelfPlay"}
    return FunctionRollout(**given | more)


def game(own: FunctionRollout | None = None, **options) -> SearchSelfPlay:
    return SearchSelfPlay(own or settings(), **{**CODE, **options})


def task(number: int) -> Task:
    """An answer that templates can propose a question for, and a question to it."""
    rng = random.Random(number)
    while True:
        drawn = make(rng, **SMALL)
        if propose_script(WORLD, drawn["answer"], 1, random.Random(1)):
            break
    messages = tuple(Message(m["role"], m["content"]) for m in drawn["messages"])
    fields = {key: drawn[key] for key in ("answer", "hops", "question")}
    return Task(f"task-{number}", messages, fields)


def slots(count: int, first: int = 0) -> list[tuple[int, Task]]:
    return [(place, task(first + place)) for place in range(count)]
