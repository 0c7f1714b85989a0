"""Models that read images or sounds beside text, through transformers, behind the decoder's interface.

Any local folder with a processor whose family transformers knows as image-text-to-text or as
multimodal: Qwen2.5-VL, SmolVLM and Idefics, LLaVA, Qwen2-Audio, our own small one. A row is token ids
with the placeholder tokens expanded, and the media they stand for, by hash (`MediaIds`, `Span.media`);
`MediaProcessor` keeps their tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnish.errors import UserError, first_line
from burnish.lm.base import MediaIds
from burnish.lm.media_processor import MediaProcessor, kind_of
from burnish.lm.model_input import ModelInput
from burnish.lm.pretrained import load_pretrained
from burnish.lm.tokenizer import PROCESSOR_FILES, Tokenizer
from burnish.lm.transformers_model import Media, Together, TransformersDecoder
from burnish.lm.weights import read_json
from burnish.models import register
from burnish.records import MediaPart, Message, TextPart

_AUTO_CLASSES = ("AutoModelForImageTextToText", "AutoModelForMultimodalLM", "AutoModelForSeq2SeqLM")
"""Where transformers lists such families, in its newer and older versions."""


def has_processor(folder: Path) -> bool:
    """Whether a folder is that of a model which reads more than text."""
    return any((folder / name).is_file() for name in PROCESSOR_FILES) and _auto(folder) is not None


def _auto(folder: Path) -> Any:
    """The Auto class that loads the folder's family; None where it is one of text."""
    import transformers

    register(read_json(folder / "config.json").get("model_type"))
    try:
        config = transformers.AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    # Boundary: transformers raises what it likes for a config that it cannot make sense of.
    except Exception as error:
        reason = first_line(error)
        raise UserError(f"{folder} cannot be loaded by transformers: {reason}") from error
    for name in _AUTO_CLASSES:
        auto = getattr(transformers, name, None)
        if auto is not None and type(config) in auto._model_mapping:
            return auto
    return None


class MediaDecoder(TransformersDecoder):
    """A transformers model of text and media that looks like `Decoder`."""

    def __init__(self, model: Any, media: MediaProcessor) -> None:
        super().__init__(model)
        self.media = media
        self.forbidden = media.placeholder_ids
        taken = {*media.placeholder_ids}
        size = self.head_weight.shape[0]
        a, b, c = [token for token in range(1, size) if token not in taken][:3]
        self.tried = (a, b, c)

    @classmethod
    def from_folder(cls, folder: Path, dtype: torch.dtype, device: torch.device) -> MediaDecoder:
        """Load a local folder; code that comes with it is not run."""
        media = MediaProcessor.from_folder(folder)
        model = load_pretrained(_auto(folder), folder, dtype)
        adapter = cls(model.to(device).eval(), media)
        adapter.check(folder)
        return adapter

    def media_inputs(self, ids_BS: Tensor, media: Media | None) -> dict[str, Tensor]:
        """`pixel_values`, `input_features` and what else the family's forward takes."""
        known = torch.tensor(self.forbidden, device=ids_BS.device)
        for row, count in enumerate(torch.isin(ids_BS, known).sum(1).tolist()):
            own = media[row] if media is not None else ()
            if count != sum(map(self.media.count_of, own)):
                self.media.check(ids_BS[row].tolist(), own)
        if media is None or not any(media):
            return {}
        found = self.media.tensors(media, ids_BS.device, self.head_weight.dtype)
        if "mm_token_type_ids" in self._takes:
            found["mm_token_type_ids"] = self.media.token_types(ids_BS)
        return {name: value for name, value in found.items() if name in self._takes}

    @cached_property
    def _takes(self) -> frozenset[str]:
        return frozenset(inspect.signature(self.model.forward).parameters)

    def prefetch(self, media: Iterable[Sequence[MediaPart]]) -> None:
        """Process the media of coming rows by threads, while the device computes."""
        self.media.prefetch(part for row in media for part in row)

    # --- what is tried when a model is loaded

    def check_rendering(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Refuse a folder whose conversations would become other ids than its processor makes."""
        for part in self.media.examples:
            parts = (TextPart("Look: "), part, TextPart(" What is it?"))
            messages = [Message("user", parts)]
            try:
                ours = tokenizer.prompt_ids(messages)
            except UserError:
                continue  # a template that takes none says so when it is given some
            kind = kind_of(part)
            has_template = tokenizer.template is not None
            theirs = self.media.ids_of(tokenizer.render_text(messages), kind, has_template)
            if tuple(ours) != theirs:
                raise UserError(
                    f"{folder}: burnish makes {len(ours)} tokens of a conversation with one "
                    f"{kind}, and {type(self.media.processor).__name__} makes {len(theirs)} others. "
                    "Serve it over HTTP instead."
                )

    def _compare(self, folder: Path, kind: str) -> None:
        super()._compare(folder, kind)
        for prompt in self._prompts:
            ids_1S = torch.tensor([[*prompt, *self.tried]], device=self.head_weight.device)
            positions_1S = torch.arange(ids_1S.shape[1], device=ids_1S.device)[None]
            hidden = self(ModelInput(ids_1S, positions_1S, media=(prompt.media,)))
            self._check_logits(folder, ids_1S, hidden, (prompt.media,))
            if self.packs:
                # Two answers that share a row behind media are computed as in rows of their own.
                a, b, c = self.tried
                ids_2S = torch.tensor([[*prompt, a, b], [*prompt, c, a]], device=ids_1S.device)
                positions_2S = torch.arange(len(prompt) + 2, device=ids_1S.device).expand(2, -1)
                apart = self(ModelInput(ids_2S, positions_2S, media=(prompt.media, prompt.media)))
                self.packs = self._packs_exactly(prompt, [[a, b], [c, a]], apart)
        self.note_proven(max((len(prompt) + 3 for prompt in self._prompts), default=0), 0)

    @cached_property
    def _prompts(self) -> list[MediaIds]:
        a, b, _ = self.tried
        return [
            MediaIds([a, *self.media.expansion(part), b], [part]) for part in self.media.examples
        ]

    def _trials(self) -> dict[Together, list[list[Sequence[int]]]]:
        a, b, c = self.tried
        trials = super()._trials()
        for prompt in self._prompts:
            longer = MediaIds([*prompt, c, a], prompt.media)
            other = MediaIds([*prompt[:-1], c], prompt.media)
            trials[Together.ANY].append([prompt, [a, b], longer])
            trials[Together.SAME_LENGTH].append([prompt, other])
            trials[Together.NONE].append([prompt])
        return trials
