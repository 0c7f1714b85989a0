"""Meta-rubrics by domain and language, the shipped ones among them (OpenRS).

library = RubricLibrary.shipped()
rubric = library.for_request("Write a short story about rain.", domain="写作")
library.with_rubric(edited)         # the same shelf with one rubric replaced
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Self

from burnish.errors import UserError
from burnish.rewards.judges.openrs.meta_rubric import GENERAL, Language, MetaRubric, name_key
from burnish.seeds import digest

SHIPPED = Path(__file__).parent / "rubrics"

_CJK = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_KANA_OR_HANGUL = re.compile(r"[\u3040-\u30ff\uac00-\ud7af]")


class RubricLibrary:
    """Rubrics by domain and language."""

    def __init__(self, rubrics: Iterable[MetaRubric]) -> None:
        self.rubrics = {(rubric.domain, rubric.language): rubric for rubric in rubrics}
        self._domains: dict[str, str] = {}
        for rubric in self.rubrics.values():
            for name in (rubric.domain, *rubric.names):
                known = self._domains.setdefault(name_key(name), rubric.domain)
                if known != rubric.domain:
                    raise UserError(
                        f"'{name}' names the domains '{known}' and '{rubric.domain}'; expected one."
                    )

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Every `*.md` of a folder."""
        files = sorted(Path(folder).glob("*.md"))
        if not files:
            raise UserError(f"{folder}: no rubric here; expected files such as general.en.md.")
        return cls(MetaRubric.load(file) for file in files)

    @classmethod
    def shipped(cls) -> Self:
        """The rubrics of this package, read once."""
        return cls(_shipped())

    @property
    def hash(self) -> str:
        """Changes with any rubric."""
        return digest(*(self.rubrics[key].render() for key in sorted(self.rubrics)))

    @property
    def domains(self) -> list[str]:
        return sorted({domain for domain, _ in self.rubrics})

    def domain_of(self, name: str) -> str | None:
        """The domain that a dataset's word stands for, in English or Chinese; None if unknown.

        `mmlu-pro-math` and the like are found by their longest known word.
        """
        whole = name_key(name)
        if whole in self._domains:
            return self._domains[whole]
        words = [
            known
            for known in self._domains
            if f" {known} " in f" {whole} " or (_CJK.search(known) and known in whole)
        ]
        return self._domains[max(words, key=len)] if words else None

    def with_rubric(self, rubric: MetaRubric) -> RubricLibrary:
        """The library with one rubric in the place of its namesake."""
        return RubricLibrary({**self.rubrics, (rubric.domain, rubric.language): rubric}.values())

    def for_request(
        self, request: str, domain: str = "", language: Language | None = None
    ) -> MetaRubric:
        """The general rubric and, where there is one, that of the domain, in one language."""
        spoken = language or language_of(request)
        if (GENERAL, spoken) not in self.rubrics:
            spoken = next((lang for dom, lang in self.rubrics if dom == GENERAL), spoken)
        known = self.domain_of(domain) if domain else None
        parts = [
            self.rubrics[key]
            for key in dict.fromkeys([(GENERAL, spoken), (known or GENERAL, spoken)])
            if key in self.rubrics
        ]
        if not parts:
            raise UserError(
                f"no rubric for language '{spoken}'; the library has {', '.join(self.domains)}."
            )
        return parts[0] if len(parts) == 1 else parts[0].joined(parts[1])


def language_of(text: str) -> Language:
    """`zh` where at least a fifth of the letters are Chinese characters, else `en`.

    Characters that stand among Japanese or Korean letters do not make a text Chinese.
    """
    chinese = len(_CJK.findall(text))
    others = len(_KANA_OR_HANGUL.findall(text))
    letters = sum(letter.isalpha() for letter in text)
    return "zh" if chinese > 5 * others and 5 * chinese >= letters > 0 else "en"


@cache
def _shipped() -> tuple[MetaRubric, ...]:
    return tuple(MetaRubric.load(file) for file in sorted(SHIPPED.glob("*.md")))
