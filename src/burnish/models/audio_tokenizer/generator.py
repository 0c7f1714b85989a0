"""Speech from text on latents: a causal transformer whose states a flow head turns into patches (2.3).

Text stands first and sees all of itself, then the patches so far; state j becomes patch j of `patch`
frames. With `characters_a_patch` a patch stands beside the characters that it should say, not behind the
whole text, which is learned in a fraction of the steps. `head` is `flow`, or `regression`, to be compared
with. A speech folder holds two Hugging Face folders, `tokenizer` and `generator`, in half precision.
"""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    DynamicCache,
    PreTrainedModel,
    initialization as init,
)

from burnish.arguments import as_path, as_word, refused, shown
from burnish.boundary import Count, NonNegative, Positive, PositiveInt, Share, public, public_method
from burnish.errors import UserError
from burnish.models.audio_tokenizer.modeling_audio_tokenizer import (
    AudioTokenizerModel,
    ends_padded,
    open_tokenizer,
)
from burnish.models.audio_tokenizer.objective import normalise_frames, patchify_latents
from burnish.models.audio_tokenizer.representation import (
    causal_blocks,
    check_transformer,
)
from burnish.models.blocks import ResidualStack, Topology, rotation
from burnish.models.blocks.flow import FlowBlock, FlowHead, RegressionHead
from burnish.models.folders import (
    Layers,
    Size,
    init_transformer,
    new_own,
    not_finite,
    open_own,
    read_settings,
    save_own,
)

if TYPE_CHECKING:
    from jaxtyping import Int

PARTS = ("tokenizer", "generator")


class AudioGeneratorConfig(transformers.PreTrainedConfig):  # type: ignore[misc]
    """Sizes of an `AudioGeneratorModel`."""

    model_type = "burnish-audio-generator"

    vocab_size: PositiveInt = 256
    """Of the text; 0 is padding."""
    alphabet: str = ""
    """Characters by id, the first is 1; empty: ids are the caller's own."""
    voices: list[str] = ()  # type: ignore[assignment]  # a default that nobody can change
    """Names of voices; empty: one voice."""
    characters_a_patch: NonNegative = 0.0
    """Where patches stand beside the text: ids that one of them says; 0: behind the text."""
    latent_size: Size = 64
    patch: Size = 2
    hidden_size: Size = 256
    num_hidden_layers: Layers = 6
    num_attention_heads: Size = 4
    norm_topology: str = "pre"
    rope_theta: Positive = 10_000.0
    head: Literal["flow", "regression"] = "flow"
    head_size: Size = 256
    head_layers: Layers = 4
    is_normalised: bool = True
    """Frames have mean 0 and standard deviation 1 over channels, as with the bottleneck norm+noise."""
    tokenizer_fingerprint: str = ""
    """Of the tokenizer whose latents it learns; empty: not known."""

    def __post_init__(self, **kwargs: Any) -> None:
        read_settings(self)
        check_transformer(self)
        for name, items in (("alphabet", self.alphabet), ("voices", self.voices)):
            if len(set(items)) < len(items):
                raise refused(name, items, "every one once")
        if self.alphabet and len(self.alphabet) + 1 != self.vocab_size:
            raise refused("vocab_size", self.vocab_size, f"{len(self.alphabet) + 1} with padding")
        super().__post_init__(**kwargs)


class FlowDraws(NamedTuple):
    """Random numbers of one step."""

    noise: Tensor
    """N(0, 1), (S, B, J, P D): S times for every patch."""
    tau: Tensor
    """(S, B, J), from 0 to 1."""
    is_dropped: Tensor
    """bool (B, J): the condition is left out."""
    alpha: Tensor
    """(B,): strength of the noise on what is fed back."""
    fed: Tensor
    """N(0, 1), (B, J, P D)."""


@public
def draw_flow(
    rows: PositiveInt,
    patches: PositiveInt,
    size: PositiveInt,
    generator: torch.Generator,
    *,
    times: PositiveInt = 4,
    dropout: Share = 0.1,
    strength: NonNegative = 0.5,
) -> FlowDraws:
    """Draw `FlowDraws`, on the generator's device."""
    shape = (rows, patches)
    uniform = partial(torch.rand, generator=generator, device=generator.device)
    normal = partial(torch.randn, generator=generator, device=generator.device)
    return FlowDraws(
        normal(times, *shape, size),
        uniform(times, *shape),
        uniform(*shape) < dropout,
        uniform(rows) * strength,
        normal(*shape, size),
    )


class GeneratorLoss(NamedTuple):
    """The sum, and its parts."""

    loss: Tensor
    patches: Tensor
    """Of the head, mean over the patches that count."""
    end: Tensor
    """Cross-entropy of whether a patch is the last."""


class AudioGeneratorModel(PreTrainedModel):  # type: ignore[misc]
    """Text ids to latents.

    >>> sizes = dict(hidden_size=16, num_hidden_layers=1, head_size=8, head_layers=1)
    >>> model = new_generator(vocab_size=9, latent_size=4, **sizes)
    >>> made = model.generate(torch.tensor([[3, 1, 2]]), torch.Generator(), most_patches=5, least_patches=5)
    >>> tuple(made.shape)
    (1, 10, 4)
    """

    config_class = AudioGeneratorConfig
    base_model_prefix = "audio_generator"
    main_input_name = "text"

    def __init__(self, config: AudioGeneratorConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.words = nn.Embedding(config.vocab_size, size)
        self.voice = nn.Embedding(len(config.voices), size) if config.voices else None
        self.start = nn.Parameter(torch.zeros(size))
        width = config.patch * config.latent_size
        self.input = nn.Linear(width, size)
        blocks = causal_blocks(size, config.num_attention_heads, config.num_hidden_layers)
        self.layers = ResidualStack(blocks, size, Topology(config.norm_topology))
        kind = FlowHead if config.head == "flow" else RegressionHead
        self.head: FlowHead | RegressionHead = kind(
            width, size, config.head_size, config.head_layers
        )
        self.end = nn.Linear(size, 1)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        init_transformer(module, self.config.num_hidden_layers, std=0.02)
        zeroed: list[Any] = [module.modulation] if isinstance(module, FlowBlock | FlowHead) else []
        if isinstance(module, FlowHead):
            zeroed.append(module.output)
            init.zeros_(module.nothing)
        elif isinstance(module, AudioGeneratorModel):
            init.normal_(module.start, std=0.02)
        for last in zeroed:
            init.zeros_(last.weight)
            init.zeros_(last.bias)

    def ids(self, text: str) -> list[int]:
        """The ids of a text; one line for a character that the alphabet lacks."""
        known = {character: place + 1 for place, character in enumerate(self.config.alphabet)}
        if strange := sorted(set(text) - set(known)):
            expected = f"characters of {shown(self.config.alphabet)}, not {shown(strange[0])}"
            raise refused("text", text, expected)
        return [known[character] for character in text]

    def voice_id(self, name: str) -> int:
        """The place of a voice in the table; one line if there is none of that name."""
        return list(self.config.voices).index(as_word("voice", name, self.config.voices))

    def states(self, text: Tensor, patches: Tensor, voices: Tensor | None = None) -> Tensor:
        """What the next patches are made from: text (B, L), patches so far (B, J, P D) -> (B, J + 1, H).

        `voices` (B,) are places in the table of voices, where the model has one.
        """
        words, start = self._read(text, voices)
        hidden = torch.cat((words, start, self.input(patches)), dim=1)
        return self._stacked(hidden, text, patches.shape[1] + 1)[:, text.shape[1] :]

    def _read(self, text: Tensor, voices: Tensor | None) -> tuple[Tensor, Tensor]:
        """What stands before the patches: words (B, L, H) and the start (B, 1, H), in a voice."""
        words, start = self.words(text), self.start.expand(len(text), 1, -1)
        if self.voice is None:
            return words, start
        spoken_by = self.voice(voices)[:, None]
        return words + spoken_by, start + spoken_by

    def _stacked(
        self, hidden: Tensor, text: Tensor, count: int, cache: DynamicCache | None = None
    ) -> Tensor:
        """The layers over the last rows of text and `count` states; those before are in the cache."""
        heard = torch.ones(len(text), count, dtype=torch.bool, device=text.device)
        seen = torch.cat((text != 0, heard), dim=1)
        letters, length, last = text.shape[1], seen.shape[1], hidden.shape[1]
        order = torch.ones(length, length, dtype=torch.bool, device=text.device).tril()
        order[:letters, :letters] = True
        own = torch.eye(length, dtype=torch.bool, device=text.device)
        mask = ((order & seen[:, None, :]) | own)[:, None, -last:]
        # Positions of ids and of the `count` states behind them, or beside them.
        places = (seen.long().cumsum(1) - 1).clamp(min=0)
        if self.config.characters_a_patch:
            beside = torch.arange(count, device=seen.device) * self.config.characters_a_patch
            beside = beside.expand(len(seen), -1)
            places = torch.cat((places[:, :letters].float(), beside), dim=1)
        size = self.config.hidden_size // self.config.num_attention_heads
        turn = rotation(places[:, -last:], size, self.config.rope_theta, hidden.dtype)
        found: Tensor = self.layers(hidden, rotation=turn, mask=mask, cache=cache)
        return found

    def loss(
        self,
        text: Tensor,
        latents: Tensor,
        mask: Tensor,
        draws: FlowDraws,
        voices: Tensor | None = None,
    ) -> GeneratorLoss:
        """Of text (B, L) and its latents (B, T, D), whose frames count where `mask` (B, T) says so."""
        patches = patchify_latents(latents, self.config.patch)
        rows, count, _ = patches.shape
        is_frame = ends_padded(mask, "mask", latents)
        is_patch = is_frame[:, : count * self.config.patch].view(rows, count, -1).all(-1)
        fed = patches + draws.alpha[:, None, None] * draws.fed
        states = self.states(text, fed[:, :-1], voices)
        wide = (len(draws.noise), -1, -1)
        errors = self.head.loss(
            patches.expand(*wide, -1),
            states.expand(*wide, -1),
            draws.noise,
            draws.tau,
            draws.is_dropped.expand(wide),
        )
        total = is_patch.sum().clamp(min=1)
        of_patches = torch.where(is_patch, errors.mean(0), 0.0).sum() / total
        is_last = is_patch & ~F.pad(is_patch[:, 1:], (0, 1))
        surprise = F.binary_cross_entropy_with_logits(
            self.end(states)[..., 0].float(), is_last.float(), reduction="none"
        )
        of_end = torch.where(is_patch, surprise, 0.0).sum() / total
        return GeneratorLoss(of_patches + of_end, of_patches, of_end)

    @public_method
    @torch.no_grad()
    def generate(
        self,
        text: Int[Tensor, "1 L"],
        generator: torch.Generator,
        *,
        voice: str = "",
        most_patches: PositiveInt = 200,
        least_patches: Count = 1,
        steps: PositiveInt = 16,
        guidance: NonNegative = 1.0,
    ) -> Tensor:
        """Latents (1, T, D) of one text (1, L), patch by patch until the model says that it has ended.

        `voice` is a name of the table of voices; empty: its first.
        """
        voices = None
        if self.voice is not None:
            chosen = self.voice_id(voice) if voice else 0
            voices = torch.tensor([chosen], device=text.device)
        size, frames = self.config.latent_size, self.config.patch
        shape = (1, 1, frames * size)
        patches: list[Tensor] = []
        cache = DynamicCache()
        hidden = torch.cat(self._read(text, voices), dim=1)
        for count in range(1, most_patches + 1):
            state = self._stacked(hidden, text, count, cache)[:, -1:]
            noise = torch.randn(shape, generator=generator, device=generator.device)
            made = self.head.sample(state, noise.to(state), steps, guidance)
            if self.config.is_normalised:
                made = normalise_frames(made.view(1, frames, size)).reshape(shape)
            patches.append(made)
            hidden = self.input(made)
            if count >= least_patches and float(self.end(state)) > 0:
                break
        return torch.cat(patches, dim=1).view(1, -1, size)


def new_generator(
    folder: str | Path | None = None, *, seed: int = 0, **sizes: Any
) -> AudioGeneratorModel:
    """A generator with random weights; written to `folder` too, where there is one."""
    return new_own(AudioGeneratorModel, sizes, folder, seed)


def open_generator(folder: str | Path) -> AudioGeneratorModel:
    """The generator in a folder that `save_pretrained` wrote."""
    return open_own(AudioGeneratorModel, folder, "an audio generator")


class SpeechModels(NamedTuple):
    """What turns ids of text into samples."""

    tokenizer: AudioTokenizerModel
    generator: AudioGeneratorModel


def save_speech_folder(
    folder: str | Path, tokenizer: AudioTokenizerModel, generator: AudioGeneratorModel
) -> Path:
    """Write both models, in half precision; one line if they do not belong together.

    Weights that half precision cannot hold are refused, and nothing is written.
    """
    place = as_path("folder", folder, "a folder to write")
    check_pair(str(place), tokenizer, generator)
    models: tuple[PreTrainedModel, ...] = (tokenizer, generator)
    halves = [copy.deepcopy(model).cpu().half() for model in models]
    halves[1].config.tokenizer_fingerprint = tokenizer.fingerprint()
    for part, half in zip(PARTS, halves, strict=True):
        if (name := not_finite(half)) is not None:
            raise UserError(
                f"{place}: the {part}'s weight {name} holds what half precision cannot, expected numbers "
                "up to 65,504. Start from a checkpoint before"
            )
    for part, half in zip(PARTS, halves, strict=True):
        save_own(half, place / part)
    return place


def open_speech_folder(folder: str | Path) -> SpeechModels:
    """Both models in single precision, on the CPU; one line for whatever is wrong with the folder."""
    place = check_speech_folder(folder)
    tokenizer, generator = open_tokenizer(place / PARTS[0]), open_generator(generator_folder(place))
    check_pair(str(place), tokenizer, generator)
    return SpeechModels(tokenizer.float(), generator.float())


def check_speech_folder(folder: str | Path) -> Path:
    """The folder, if both parts lie in it; no weights are read."""
    place = as_path("folder", folder, "a folder that save_speech_folder wrote").expanduser()
    for name, part in zip(PARTS, (place / PARTS[0], generator_folder(place)), strict=True):
        if not (part / "config.json").is_file():
            raise UserError(f"{place}: has no {name}/config.json; see save_speech_folder")
    return place


def generator_folder(place: Path) -> Path:
    """Where the generator of a folder lies: in `generator`, or as a checkpoint in the folder itself."""
    inner = place / PARTS[1]
    return inner if inner.is_dir() else place


def check_pair(where: str, tokenizer: AudioTokenizerModel, generator: AudioGeneratorModel) -> None:
    """Refuse a generator that was not made for the latents of this tokenizer."""
    ours, theirs = generator.config, tokenizer.config
    learned, own, fault = ours.tokenizer_fingerprint, tokenizer.fingerprint(), ""
    if not ours.alphabet:
        fault = "has no alphabet; make it with new_generator(alphabet=...)"
    if learned not in ("", own):
        fault = f"learned latents of another tokenizer ({learned}, this is {own}); name that one"
    for name in ("latent_size", "is_normalised"):
        if getattr(ours, name) != getattr(theirs, name):
            fault = f"has another {name} than the tokenizer; train it on latents of this tokenizer"
    if fault:
        raise UserError(f"{where}: the generator {fault}")


AutoConfig.register(AudioGeneratorConfig.model_type, AudioGeneratorConfig, exist_ok=True)
AutoModel.register(AudioGeneratorConfig, AudioGeneratorModel, exist_ok=True)
