"""Settings of each kind of training; `Train` lists them.

The tag of a kind is the module in `training/algorithms/` that runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from burnish.boundary import Count, Name, NonNegative, Positive, PositiveInt, Settings, Share
from burnish.errors import ArgumentError
from burnish.lm.base import COLDEST
from burnish.rewards.models.dir_term import PairTerm
from burnish.tasks.config import TaskConfig

PlainName = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9_-]{1,60}\Z", description="up to 60 letters, digits, '_' and '-'"),
]
Sources = Name | Annotated[tuple[str, ...], Meta(min_length=1)]
HeldOutShare = Annotated[float, Meta(ge=0.0, le=0.9)]
RowCount = Annotated[int, Meta(ge=1, le=100_000)]
Size = Annotated[int, Meta(ge=1, le=65_536)]
Layers = Annotated[int, Meta(ge=1, le=1024)]
Window = Annotated[int, Meta(ge=4, le=65_536)]


class Section(Settings, frozen=True, kw_only=True):
    """Base of every table of the config."""


class TrainSection(Section, frozen=True, tag_field="kind"):
    """Base of the settings of an algorithm; its tag is the module in `training/algorithms/`."""

    @property
    def needs_tasks(self) -> bool:
        """Whether it reads `[task]`; text of files needs none."""
        return True


class DataTrain(TrainSection, frozen=True):
    """Base of the kinds that read files or a function; each declares the fields with its own sentence."""

    if TYPE_CHECKING:
        data: str | tuple[str, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """`data` as a list; empty where there is none."""
        return _listed(self.data)

    @property
    def needs_tasks(self) -> bool:
        return not self.sources


class SoundTrain(DataTrain, frozen=True):
    """Base of the kinds that learn from sounds."""

    column: str = ""
    """Column of the sounds in tables; empty: audio, sound, wav, flac, ogg, mp3 or bytes."""
    held_out_data: str | tuple[str, ...] = ()
    """Sounds or rows to evaluate on, in the same forms; empty: a share of `data`."""
    held_out: HeldOutShare = 0.05
    """Share that is never trained on where `held_out_data` names none, chosen by a hash of the sounds'
    samples or of their texts."""

    @property
    def held_out_sources(self) -> tuple[str, ...]:
        """`held_out_data` as a list."""
        return _listed(self.held_out_data)


def _listed(given: str | tuple[str, ...]) -> tuple[str, ...]:
    return ((given,) if given else ()) if isinstance(given, str) else given


class PolicyTrain(TrainSection, frozen=True, tag="policy"):
    """Policy optimisation: sample, score, and follow the recipe of `[policy]`."""


class SftTrain(TrainSection, frozen=True, tag="sft"):
    """Supervised fine-tuning on the demonstrations of `[experts]`."""

    batch: RowCount = 32
    """Demonstrations of each step."""
    by: str = ""
    """Task field whose values appear equally often, so that rare ones are not forgotten."""


class PairTrain(TrainSection, frozen=True):
    """Base of the kinds that learn from pairs of answers of which one is preferred."""

    task: TaskConfig | None = None
    """Tasks that carry pairs; without it, the run's own."""
    chosen: str = "chosen"
    """Task field that holds the preferred answer: text; for a reward model also chat messages."""
    rejected: str = "rejected"
    """Task field that holds the other answer."""
    bad_pairs: Literal["refuse", "drop"] = "refuse"
    """Pairs with empty answers, equal ones (also only as tokens), labels that are no numbers, or too
    many tokens."""
    max_tokens: Count = 0
    """Longest prompt and answer together; 0: what the model reads."""
    terms: tuple[PairTerm, ...] = ()
    """Further terms of the loss, on the hidden states of the pair."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Task fields that say more of a pair than which answer is preferred."""
        return ()

    def check(self) -> None:
        names = [term.title for term in self.terms]
        taken = {"preference", "centring"}
        if len(set(names)) < len(names) or taken & set(names):
            raise ArgumentError(
                f"terms: got the names {', '.join(names)}, expected different ones, none of them "
                "'preference' or 'centring'; set their `name`"
            )


class DpoTrain(PairTrain, frozen=True, tag="dpo"):
    """Learn from pairs of answers of which one is preferred (DPO, IPO, length-controlled forms)."""

    batch: RowCount = 16
    """Pairs of a step."""
    loss: Literal["sigmoid", "ipo"] = "sigmoid"
    """`sigmoid` is DPO, `ipo` the squared loss of IPO."""
    beta: Annotated[float, Meta(gt=0.0, le=1000.0)] = 0.1
    """How strongly the policy is held to the reference; IPO's tau."""
    length_normalised: bool = False
    """Mean log-probs over an answer's tokens instead of sums; `ipo` always takes means."""
    ld_alpha: Share = 1.0
    """LD-DPO: weight of the tokens beyond the length that both answers share; 1 is plain DPO."""


class RewardModelTrain(PairTrain, frozen=True, tag="reward_model"):
    """Learn a score from pairs of answers of which one is preferred (Bradley-Terry)."""

    batch: RowCount = 32
    """Pairs of a step; pairs with one prompt are drawn together."""
    margin: str = ""
    """Task field with the number by which the preferred answer should at least lead; ties have none."""
    tie: str = ""
    """Task field that is true, `yes`, 1 or `tie` where neither answer is better."""
    target: str = ""
    """Task field with the probability that `chosen` is the better one."""
    ties: Literal["drop", "half"] = "drop"
    """Leave ties out, or learn equal scores from them (target 0.5)."""
    centring: NonNegative = 0.0
    """Weight of `(r_chosen + r_rejected)^2`, which keeps scores around 0."""

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.margin, self.tie, self.target)))


class ProcessRewardModelTrain(TrainSection, frozen=True, tag="process_reward_model"):
    """Learn from labelled steps of solutions which steps are right (a process reward model)."""

    batch: RowCount = 32
    """Solutions of a step; those of one prompt are drawn together."""
    task: TaskConfig | None = None
    """Tasks that carry solutions; without it, the run's own."""
    steps: str = "steps"
    """Task field that holds the steps: a list of texts."""
    labels: str = "labels"
    """Task field with a label for each step: 1 right, 0 wrong, null not known."""
    first_wrong: str = "first_wrong"
    """Task field with the place of the first wrong step, from 0 on, null where all are right; read
    where there are no labels. What follows that step is not learned from."""
    separator: Name = "\n\n"
    """Text behind each step; its score is read at the last token of it."""
    bad_solutions: Literal["refuse", "drop"] = "refuse"
    """Solutions without steps, with empty ones, with labels that do not fit, or too many tokens."""
    max_tokens: Count = 0
    """Longest prompt and solution together; 0: what the model reads."""


class DistilTrain(TrainSection, frozen=True, tag="distil"):
    """Bring the model's next-token distributions to those of a teacher."""

    batch: RowCount = 8
    """Prompts of a step."""
    samples: PositiveInt = 1
    """Answers that the student samples to each prompt."""
    task: TaskConfig | None = None
    """Tasks to answer; without it, the run's own."""
    teacher: Name = "start"
    """`start` or `frozen` (this model as the training begins), `ema` (an average of it over the
    steps), `student` (as it is now), or a model: a folder, `smollm2`, `tiny`. It must have the
    student's vocabulary."""
    decay: Share = 0.99
    """Of the `ema` teacher: its weights after each step are decay * its own + (1 - decay) * the
    student's."""
    policies: tuple[str, ...] = ()
    """Policy files that only the teacher reads, in its system message, and their examples as earlier
    turns; of several, one is drawn for each prompt of a step."""
    allow_truncate: bool = False
    """Leave out the last items of a policy that is longer than the context; else it is refused."""
    system: str = ""
    """A system message that only the teacher sees."""
    template: str = ""
    """Rewrites the last user message for the teacher: `{prompt}` is its text, other names are
    fields of the task, such as a hint."""
    answers: Literal["student", "teacher", "given"] = "student"
    """Whose tokens are compared: sampled by the student, sampled by the teacher in its context, or
    the task's `field`."""
    field: str = "demonstration"
    """Task field that holds the given answers."""
    divergence: Literal["reverse", "forward", "sampled", "hard"] = "reverse"
    """KL(student, teacher), KL(teacher, student), the first estimated from the sampled tokens, or
    `hard`: the answers' tokens as labels, which is SFT on what the teacher wrote."""
    top_k: Count = 0
    """Compare the likeliest tokens and one bucket for the rest; 0: the whole vocabulary."""
    support: Literal["tail", "student-topk", "union-topk"] = "tail"
    """With `top_k`: `tail` has a bucket for the rest; `student-topk`, as PolicyAlign's code, sums
    over the student's tokens alone and may be negative; `union-topk` over both models'."""
    renormalise: bool = False
    """Without a bucket: probabilities among the tokens compared instead of the whole vocabulary's."""
    kl_clip: NonNegative = 0.0
    """The most that one token's divergence counts; 0: not clipped."""
    temperature: Annotated[float, Meta(ge=COLDEST, le=100.0)] = 1.0
    """Divides both models' logits."""

    @property
    def is_self(self) -> bool:
        """The teacher is the model under training itself, in another context."""
        return self.is_frozen or self.teacher in ("ema", "student")

    @property
    def is_frozen(self) -> bool:
        """The teacher has the weights with which the training begins."""
        return self.teacher in ("start", "frozen")


class DiffusionTrain(DataTrain, frozen=True, tag="diffusion"):
    """Train a masked diffusion model on demonstrations, or on text: predict masked tokens."""

    batch: RowCount = 32
    """Rows of a step."""
    by: str = ""
    """Task field whose values appear equally often, so that rare ones are not forgotten."""
    on: Literal["answers", "text"] = "answers"
    """`answers`: the demonstrations of `[experts]` behind their prompts, which are never masked;
    `text`: plain text without a prompt, for pre-training: that of `data`, or the field of the tasks."""
    data: str | tuple[str, ...] = ""
    """Of `text`: files, folders, JSONL, CSV or Parquet files, or a function `mine.py:documents` that
    yields texts; one or a list. Empty: the texts of the tasks."""
    column: str = ""
    """Of `data`: column of the texts in tables; empty: text, contents, content, body or document."""
    separator: str = ""
    """Of `data`: between the documents of one text; empty: a file or a row is one document."""
    held_out_share: HeldOutShare = 0.05
    """Of `data`: share of the documents that is never trained on, chosen by a hash of their text."""
    separate: bool = True
    """Of `data`: documents in one row do not see each other; false: only the end token tells."""
    sequence: PositiveInt = 256
    """Tokens of a row of text. Those of `data` are laid end to end and cut without padding; of a task's
    longer text a window is drawn."""
    canvas: Count = 64
    """Answers are filled with end tokens to the next multiple of this, and decoded on a canvas of that
    size: so the model learns where to end. 0: not filled. Text is never filled."""
    rates: Literal["uniform", "clipped", "p_pots"] = "uniform"
    """How the share of masked tokens is drawn: all shares alike, between `low` and `high` (biased), or
    where the loss is large or noisy, weighted back (P-POTS)."""
    low: Share = 0.1
    """Of `clipped` rates."""
    high: Share = 0.9
    """Of `clipped` rates."""
    strata: bool = True
    """Spread the rates of a step over strata (StraTS); the expected loss is the same."""
    masks: Literal["independent", "mirror", "mirror_deduplicated"] = "independent"
    """Masks of a row: `passes` independent ones, or two that complement each other (MIRROR), which
    cost two forward passes; deduplicated, a token that both cover counts once."""
    passes: PositiveInt = 1
    """Independent masks of each row, each a forward pass."""
    delimiters: tuple[str, ...] = ()
    """Texts such as `####` whose tokens are masked more often, weighted back (ISAD)."""
    delta: Share = 0.2
    """How much more often."""
    control: Literal["none", "rescale", "gradient"] = "none"
    """`rescale` divides a row's loss by the running loss at its rate, so that all rates pull alike: another
    objective (biased). `gradient` takes the running gradient at a rate off, and adds its mean over all
    rates, for the last layer's output matrices: a control variate (unbiased); it keeps them ten times
    and runs backward through the head once more for each tenth of the rates."""
    syntax: Literal["", "html", "markdown", "json", "python"] = ""
    """Syntax tokens of prompts in this format may be masked too (SyRM), which changes what is learned a
    little."""
    syntax_rest: Share = 0.0
    """Of `syntax`: chance of every other prompt token to be one that may be masked too."""
    mix_uniform: Share = 0.1
    """Of `p_pots`: share of uniform draws; weights are at most its inverse."""
    probe_at: Count = 0
    """Of `p_pots`: the step at which losses are measured and the density is fitted; uniform before."""
    refit_every: Count = 0
    """Of `p_pots`: steps between fits; 0 fits once."""
    probe_rows: PositiveInt = 10
    """Of `p_pots`: rows of a probe."""
    probe_rates: Annotated[int, Meta(ge=5, le=1000)] = 29
    """Of `p_pots`: rates of a probe, closer together where few tokens are masked."""
    probe_masks: PositiveInt = 10
    """Of `p_pots`: masks of a probe for each row and rate."""
    moment: Literal["second", "within"] = "second"
    """Of `p_pots`: what a rate costs: the mean squared loss, or without the spread of the data, as the
    reference has it."""
    loss_max: Annotated[float, Meta(ge=0.0, le=1e6)] = 0.0
    """Of `p_pots`: losses of a probe are cut here; 0: never."""
    max_weight: Annotated[float, Meta(ge=1.0, le=1e9)] = 1e6
    """Largest weight of a row; a cut weight biases the loss, and how many were cut is reported."""
    eps: Annotated[float, Meta(gt=0.0, lt=1.0)] = 1e-3
    """Least chance of a token to be masked."""
    held_out: Literal["loss", "rewards"] = "loss"
    """What is evaluated: the loss of held-out rows, with the same masks for every run, or the rewards
    of held-out answers."""
    decoding: str = ""
    """How answers are written, such as `block=16,steps=8,order=entropy`; saved with the model."""


class DiffusionPolicyTrain(TrainSection, frozen=True, tag="diffusion_policy"):
    """Policy optimisation of a masked diffusion model (experimental): ratios of likelihood bounds."""

    masks: PositiveInt = 4
    """Masks of each answer that estimate its bound, the same ones before and after an update."""
    canvas: Count = 0
    """As in training on demonstrations; 0: as the model's folder says."""
    decoding: str = ""
    """How answers are written, such as `block=16,steps=8`; empty: as the model's folder says."""


class PretrainTrain(DataTrain, frozen=True, tag="pretrain"):
    """Learn to write text: the next token of packed documents."""

    data: Sources
    """Text files, folders, JSONL, CSV or Parquet files, or a function `mine.py:documents` that yields
    texts; one or a list."""
    column: str = ""
    """Column of the texts in tables; empty: text, contents, content, body or document."""
    separator: str = ""
    """Between the documents of one text; empty: a file or a row is one document."""
    held_out: HeldOutShare = 0.05
    """Share of the documents that is never trained on, chosen by a hash of their text."""
    batch: RowCount = 32
    """Sequences of a step."""
    sequence: Annotated[int, Meta(ge=2, le=1 << 24)] = 512
    """Tokens of a sequence; documents are laid end to end and cut without padding."""
    separate: bool = True
    """Documents in one sequence do not see each other; false: only the boundary token tells."""
    compile: bool = False
    """Compile the model's layers with torch.compile; a first step of minutes, then often faster."""

    @property
    def held_out_share(self) -> float:
        """As `diffusion` calls it, whose `held_out` is what is measured."""
        return self.held_out


class LatentsTrain(TrainSection, frozen=True, tag="latents"):
    """Learn to imagine pictures between words: latents, predicted and fed back as inputs (GAP)."""

    batch: RowCount = 16
    """Records of a step."""
    task: TaskConfig | None = None
    """Tasks that carry records; without it, the run's own."""
    head: Literal["none", "raw", "normed", "ema_norm", "linear", "pca"] = "pca"
    """What makes an input of a hidden state; `none`: text-only answers, for comparison."""
    slots: Annotated[int, Meta(ge=1, le=4096)] = 4
    """Latents of a span; vectors of an auxiliary picture are averaged to so many."""
    components: Count = 0
    """Of the basis; 0: 95 % of the variance, from 8 to half the width."""
    alpha: NonNegative = 1.0
    """Weight of the latents' squared error, a mean over coefficients, beside the text's loss."""
    beta: NonNegative = 0.0
    """Weight of 1 - cosine."""
    own: Share = 0.5
    """Share of steps, at the end of training, that feed the model its own latents; rises from 0."""
    notes: bool = True
    """Learn the `<parser>` notes behind spans; false: they are left out of the answers."""
    gate: Literal["off", "field", "measure"] = "off"
    """Latents only where the start model fails: by the field `base_accuracy`, or by sampled answers."""
    gate_samples: PositiveInt = 8
    """Answers of the start model to each question, at most: a question is asked until its side of the
    threshold is known."""
    gate_threshold: float = 0.5
    """Share of right answers up to which a question gets latents."""
    gate_temperature: Positive = 1.0
    """Of those answers."""
    assume_hard: bool = False
    """Whether questions of which no share is known get latents."""
    encoder: str = "patches"
    """What makes vectors of pictures: `patches`, a frozen random map, or your own function
    `mine.py:encode` from pixels (H, W, 3) to vectors (rows, columns, D)."""
    patch: PositiveInt = 8
    """Pixels along the side of a patch."""
    tags: Annotated[tuple[str, ...], Meta(max_length=2)] = ()
    """Tokens that open and close a span; empty: `<latent>` and `</latent>`, or two that no text has."""
    image: str = "image"
    """Task field with the picture of the question: a file, `data:` text, pixels, or vectors; may be absent."""
    aux_images: str = "aux_images"
    """Task field with the list of auxiliary pictures, one for each `<latent/>` of the response."""
    response: str = "response"
    """Task field with the answer to learn: text, `<latent/>`, `<parser>` notes, `<answer>`."""
    bad_records: Literal["refuse", "drop"] = "refuse"
    """Records with unbalanced tags, a missing note or answer, or another number of pictures."""
    max_tokens: Count = 0
    """Longest row, pictures included; 0: what the model reads."""
    interventions: tuple[Literal["zero", "mean", "noise", "shuffle", "skip", "oracle"], ...] = ()
    """What replaces latents at the last evaluation, to see whether they matter."""


class CodecSizes(Section, frozen=True):
    """Sizes and bottleneck of an audio tokenizer that starts from random weights."""

    sampling_rate: Annotated[int, Meta(ge=1000, le=768_000)] = 16_000
    """Samples a second; sounds are resampled to it."""
    n_fft: Window = 320
    """Samples of a window of the spectrum."""
    frame_hop: Annotated[int, Meta(ge=2, le=65_536)] = 80
    """Samples from one window to the next; even, at most half of `n_fft`."""
    strides: Annotated[tuple[Annotated[int, Meta(ge=1, le=64)], ...], Meta(min_length=1)] = (8,)
    """By how much each stage lowers the rate of windows; 25 latents a second by default."""
    hidden_size: Size = 256
    """Channels of the convolutions."""
    latent_size: Size = 64
    """Channels of a latent."""
    residual_dilations: tuple[Layers, ...] = (1, 1)
    """One residual unit each, in every stage."""
    bottleneck: Literal["plain", "kl", "sigma", "noise", "norm", "norm+noise"] = "norm+noise"
    """`plain`; `kl` (a VAE); `sigma`, also `noise` (noise of a random strength); `norm` (normalised over
    channels); `norm+noise` (both, F3)."""
    features: Literal["magnitude", "complex"] = "magnitude"
    """What the encoder reads of the spectrum: logarithms of magnitudes, or real and imaginary parts, from
    which it learns much more slowly."""
    causal: bool = True
    """Convolutions look at the past alone: sounds can be encoded and decoded as they come."""


class Adversarial(Section, frozen=True):
    """A second phase in which a discriminator judges spectra of the reconstruction (hinge loss)."""

    after: Count = 0
    """Steps before it begins."""
    weight: NonNegative = 1.0
    """Of the discriminator's verdict in the tokenizer's loss."""
    features: NonNegative = 2.0
    """Of the distance between its hidden layers on the sound and on the reconstruction."""
    channels: Annotated[int, Meta(ge=1, le=4096)] = 32
    """Of its convolutions."""
    windows: tuple[Window, ...] = ()
    """Samples of the windows whose spectra it judges; empty: about 16 and 64 ms."""


class CodecTrain(SoundTrain, frozen=True, kw_only=True, tag="codec"):
    """Learn an audio tokenizer: sounds to latents and back."""

    data: Sources
    """Sound files, folders of them, Parquet files with the bytes of sounds, or a function
    `mine.py:sounds` that yields pairs of samples and rate; one or a list."""
    batch: RowCount = 16
    """Crops of a step."""
    seconds: Annotated[float, Meta(gt=0.0, le=600.0)] = 1.0
    """Length of a crop; shorter sounds are padded, and padding counts for nothing."""
    sizes: CodecSizes = CodecSizes()
    """Of the tokenizer where `model.path` is `new`."""
    windows: tuple[Window, ...] = ()
    """Samples of the windows whose spectra are compared; empty: six sizes, about 4 to 128 ms."""
    mel_weight: NonNegative = 15.0
    """Of mel bands in the loss."""
    wave_weight: NonNegative = 0.0
    """Of the waveform in the loss; for latents that carry phases, as those of 25 frames a second do not."""
    kl_weight: NonNegative = 1e-2
    """Of the bottleneck `kl`: weight of the divergence to N(0, 1)."""
    adversarial: Adversarial | None = None
    """A discriminator beside the spectral loss; none: without."""


class GeneratorSizes(Section, frozen=True):
    """Sizes and head of a speech generator that starts from random weights."""

    patch: Annotated[int, Meta(ge=1, le=64)] = 2
    """Latents that are made at one time."""
    hidden_size: Size = 256
    """Of the transformer; a multiple of the heads."""
    num_hidden_layers: Layers = 6
    """Of the transformer."""
    num_attention_heads: Layers = 4
    """Of the transformer."""
    head: Literal["flow", "regression"] = "flow"
    """`flow` draws a patch from noise; `regression` learns the mean of what may follow, to compare with."""
    head_size: Annotated[int, Meta(ge=2, le=65_536)] = 256
    """Width of the head."""
    head_layers: Layers = 4
    """Of the head."""
    beside: bool = True
    """A patch stands beside the characters that it should say, by the mean pace of the data, which is
    learned in a fraction of the steps; false: behind the whole text."""


class SpeechTrain(SoundTrain, frozen=True, kw_only=True, tag="speech"):
    """Learn voices: text to the latents of a trained audio tokenizer."""

    tokenizer: Name
    """Run or folder of an audio tokenizer (`burnish train codec`); its weights stay as they are."""
    data: Sources
    """JSONL, CSV, TSV or Parquet files with sounds (paths from the file's folder, or bytes), texts and
    names of voices, or a function `mine.py:rows` that yields such rows; one or a list."""
    text: Name = "text"
    """Column of what is said."""
    voice: Name = "voice"
    """Column of who says it; without it there is one voice, which has no name."""
    longest: Annotated[float, Meta(gt=0.0, le=600.0)] = 15.0
    """Seconds of a sound; rows with longer ones are left out, counted and named."""
    batch: RowCount = 16
    """Rows of a step."""
    sizes: GeneratorSizes = GeneratorSizes()
    """Of the generator where `model.path` is `new`."""
    times: Layers = 4
    """Random times at which the head is asked about each patch."""
    dropout: Share = 0.1
    """Share of the patches whose condition is left out: what guidance compares with."""
    noise: NonNegative = 0.5
    """Noise on the patches that are fed back: its strength is uniform from 0 to this, one a row."""
    spoken: Count = 4
    """Held-out sentences that are spoken and kept at each evaluation, to be heard in the viewer."""


class FunctionTrain(TrainSection, frozen=True, tag="function"):
    """Your own algorithm, by path: `my_file.py:MyAlgorithm` or `package.module:MyAlgorithm`."""

    path: str
    """Your class: `my_file.py:MyAlgorithm` or `package.module:MyAlgorithm`."""
    options: dict[str, object] = msgspec.field(default_factory=dict)
    """Its settings."""


Train = (
    PolicyTrain
    | SftTrain
    | DpoTrain
    | RewardModelTrain
    | ProcessRewardModelTrain
    | DistilTrain
    | DiffusionTrain
    | DiffusionPolicyTrain
    | PretrainTrain
    | LatentsTrain
    | CodecTrain
    | SpeechTrain
    | FunctionTrain
)
