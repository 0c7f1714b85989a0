"""A language model as a judge of pairs: criteria first, evidence per criterion, scores last.

The texts to judge are data. Each stands between lines that carry a mark made from the pair itself,
which a text cannot know in advance, and only the scores at the end of the model's own reply count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from burnish.errors import UserError
from burnish.lm.base import LM, Sampling, check_sampling, known_as
from burnish.lm.failures import EXPECTED, classify
from burnish.lm.replay import asked_sample
from burnish.records import Finish, Message, Status
from burnish.rewards.judges.ledger import PaidReplies, note_judge
from burnish.rewards.judges.prompting import check_template, fill, wording
from burnish.rewards.judges.questions import Reply
from burnish.rewards.pair_judges import ExplainingJudge, Opinion, Pair
from burnish.rewards.pairs import parse_pair_scores
from burnish.rewards.scorer import gather
from burnish.seeds import derive, digest
from burnish.texts import whole_characters

_BLANKS = ("request", "first", "second", "mark")


class LMPairJudge(ExplainingJudge):
    """A model that is asked for two scores; a failed call or an unreadable reply is no verdict.

    `template` has the blanks {request}, {first} and {second}, and {mark} where it wants one; the
    reply must end in `<scores>a, b</scores>`. The same pair asked again in one call is another
    vote, with another seed.
    """

    def __init__(
        self,
        lm: LM,
        template: str | None = None,
        *,
        temperature: float = 0.6,
        max_tokens: int = 2048,
        seed: int = 0,
        concurrency: int = 32,
    ) -> None:
        self.lm, self.name, self.seed = lm, lm.name, seed
        self.template = default_template() if template is None else template
        self.sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
        check_sampling(self.sampling)
        check_template(self.template, _BLANKS[:3], f"judge '{self.name}'")
        if concurrency < 1:
            raise UserError(f"judge '{self.name}': concurrency is {concurrency}; expected >= 1.")
        self.concurrency = concurrency
        self.paid = PaidReplies()
        """What a training run has paid for already."""
        note_judge(self)

    @property
    def fingerprint(self) -> str:
        return digest(*known_as(self.lm), self.template, repr(self.sampling), str(self.seed))

    async def opinions(self, pairs: Sequence[Pair]) -> list[Opinion]:
        seen: Counter[Pair] = Counter()
        calls = []
        for pair in pairs:
            calls.append(partial(self._one, pair, seen[pair]))
            seen[pair] += 1
        return await gather(calls, limit=self.concurrency) if calls else []

    async def _one(self, pair: Pair, vote: int) -> Opinion:
        mark = digest(*(text.encode("utf-8", "surrogatepass") for text in pair))
        text = fill(self.template, dict(zip(_BLANKS, (*pair, mark), strict=True)))
        sampling = Sampling(
            temperature=self.sampling.temperature,
            max_tokens=self.sampling.max_tokens,
            seed=derive(self.seed, mark, vote),
        )
        messages = (Message("user", whole_characters(text)),)
        _, *identity = known_as(self.lm)
        key = digest(asked_sample(self.name, messages, sampling).key, *identity)
        if (paid := self.paid.read(key)) is not None:
            return _read(paid)
        try:
            completions = await self.lm.sample(messages, sampling)
        except EXPECTED as error:
            return Opinion.none(classify(error).status, " ".join(str(error).split())[:500])
        if not completions:
            return Opinion.none(Status.INFRA_ERROR, f"model '{self.name}' gave no completion")
        said = completions[0]
        reply = Reply(whole_characters(said.text), whole_characters(said.model), said.finish)
        if reply.finish is not Finish.ERROR:
            self.paid.write(key, reply)
        return _read(reply)


def default_template() -> str:
    """The wording that ships with the package."""
    return wording("pair_scores", Path(__file__).parent / "prompts")


def _read(reply: Reply) -> Opinion:
    said = reply.text.strip()
    if reply.finish is Finish.ERROR:
        return Opinion.none(Status.INFRA_ERROR, "the judge's backend failed", said)
    scores = parse_pair_scores(reply.text)
    if scores is not None:
        return Opinion((scores[0], scores[1]), said)
    cut = ", cut at max_tokens" if reply.finish is Finish.LENGTH else ""
    reason = f"no <scores>a, b</scores> with two numbers from 0 to 10 in the reply{cut}"
    return Opinion.none(Status.PARSE_ERROR, reason, said)
