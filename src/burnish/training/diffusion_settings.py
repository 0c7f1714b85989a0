"""Settings of masked diffusion: what contradicts itself, and the noise that they name."""

from __future__ import annotations

from typing import Any

from burnish.config.schema import DiffusionTrain
from burnish.errors import UserError
from burnish.lm.diffusion.decoding import Decoding, parse_decoding
from burnish.lm.tokenizer import Tokenizer
from burnish.models.masked_diffusion.samplers import Noise, build_noise

FITTED = (
    "mix_uniform",
    "probe_at",
    "refit_every",
    "probe_rows",
    "probe_rates",
    "probe_masks",
    "fit_starts",
    "moment",
    "loss_max",
    "max_weight",
)
"""Keys that rates 'p_pots' alone reads."""

OF_TEXT = ("column", "separator", "held_out_share", "separate")
"""Keys that text of files alone reads."""


def check_settings(settings: DiffusionTrain) -> None:
    """Refuse keys that would be ignored in silence, and those that contradict each other."""
    is_text = settings.on == "text"
    rules = (
        (settings.rates == "clipped", ("low", "high"), "train.rates = 'clipped'"),
        (settings.rates == "p_pots", FITTED, "train.rates = 'p_pots'"),
        (bool(settings.delimiters), ("delta", "delimiter_weight"), "train.delimiters"),
        (is_text, ("sequence", "data"), "train.on = 'text'"),
        (bool(settings.sources), OF_TEXT, "train.data"),
        (not settings.sources, ("by",), "a task set (no train.data)"),
        (bool(settings.syntax), ("syntax_rest",), "train.syntax"),
        (not is_text or settings.canvas == 0, ("canvas",), "train.on = 'answers'"),
        (not is_text, ("syntax",), "train.on = 'answers'"),
        (settings.held_out == "loss", ("held_out_masks",), "train.held_out = 'loss'"),
        (
            settings.passes > 1 or settings.masks != "independent",
            ("stacked",),
            "train.passes above 1 or train.masks = 'mirror'",
        ),
    )
    default = DiffusionTrain()
    for is_read, keys, reader in rules:
        for key in () if is_read else keys:
            value, usual = getattr(settings, key), getattr(default, key)
            if value != usual:
                raise UserError(
                    f"train.{key} is {value!r}, which only {reader} reads; set that, or "
                    f"train.{key} = {usual!r}"
                )
    if settings.sources and settings.held_out == "rewards":
        raise UserError(
            "train.held_out is 'rewards', and train.data is text without prompts; expected 'loss'. Rewards "
            "of a trained model: burnish eval"
        )
    check_canvas(settings.decoding, canvas_of(settings))


def canvas_of(settings: DiffusionTrain) -> int:
    """The canvas that answers are filled to; text is never filled."""
    return settings.canvas if settings.on == "answers" else 0


def check_canvas(decoding: str, canvas: int) -> None:
    """Refuse a decoding on another canvas than the one that is trained with."""
    named = parse_decoding(decoding, Decoding(canvas=canvas)).canvas
    if named != canvas:
        raise UserError(
            f"train.decoding has canvas={named}, and rows are trained with a canvas of {canvas}; "
            "expected the same. Leave it out of train.decoding"
        )


def noise_of(settings: DiffusionTrain, tokenizer: Tokenizer | None) -> Noise:
    """The samplers that the settings name; without a tokenizer, to check them."""
    options: dict[str, Any] = {}
    if settings.rates == "clipped":
        options = {"low": settings.low, "high": settings.high}
    if settings.rates == "p_pots":
        options = {
            "mix_uniform": settings.mix_uniform,
            "refit_every": settings.refit_every,
            "start": settings.probe_at,
            "n_starts": settings.fit_starts,
            "moment": settings.moment,
            "loss_max": settings.loss_max or None,
            "max_weight": settings.max_weight,
        }
    ids: set[int] = set()
    for text in settings.delimiters:
        found = tokenizer.encode_data(text) if text and tokenizer is not None else []
        if not text or (tokenizer is not None and not found):
            raise UserError(
                f"train.delimiters has {text!r}, which has no token; expected texts such as '####'. Leave "
                "it out"
            )
        ids |= set(found)
    return build_noise(
        settings.rates,
        settings.masks,
        passes=settings.passes,
        strata=settings.strata,
        delimiters=sorted(ids),
        delta=settings.delta,
        delimiter_weight=settings.delimiter_weight,
        eps=settings.eps,
        control="rescale" if settings.control == "rescale" else "none",
        options=options,
    )
