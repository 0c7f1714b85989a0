"""What a picture shows, as a model that sees it lists it (EVPV).

    {"type": "vision", "image": "data:image/png;base64,..."}    # any LM that takes image parts

The model gets the instructions and after them the picture, and nothing of the question or of a solution:
what it lists cannot depend on the answer that is checked. A reply that is no such list, and a model that
cannot see, give a status and no facts, so that the gate stays open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio.to_thread

from burnish.errors import UserError
from burnish.records import Status
from burnish.rewards.judges.evpv.extracting import LISTED, PROMPTS, Extraction, ask_facts
from burnish.rewards.judges.evpv.pictures import picture_of
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import as_user, fill, wording


async def from_vision(
    piece: Mapping[str, Any], *, judge: JudgeModel | None = None, about: tuple[str, ...] = ()
) -> Extraction:
    """Facts that a vision-language model lists."""
    if judge is None:
        raise UserError(
            "extractor 'vision' asks a model that sees; give one with --model or `model`"
        )
    picture = await anyio.to_thread.run_sync(picture_of, piece)
    if isinstance(picture, str):
        return Extraction(status=Status.PARSE_ERROR, reason=picture)
    text = fill(wording("look", PROMPTS), {"most": str(LISTED)})
    source = f", picture {picture.sha256[:12]}"
    return await ask_facts(judge, as_user(text, (picture.part,)), about, source=source)
