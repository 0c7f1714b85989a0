"""`burnish try`: a few prompts through a scripted model, before anything is trained; all else is real."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from rich.text import Text
from typer import Option

from burnish.api.needs import import_policy
from burnish.cli.console import complain, number, one_line, out, say
from burnish.cli.drawing import (
    coloured,
    counts,
    legend,
    print_media,
    print_rows,
    reward_cell,
    reward_tree,
    value_style,
)
from burnish.cli.entry import USER
from burnish.cli.shared_options import Words
from burnish.config.recipes import Asked, resolve
from burnish.errors import UserError
from burnish.records import Author, Finish, Reward, Span, Status, Task, Trajectory
from burnish.seeds import derive
from burnish.store.blobs import shared_blobs
from burnish.texts import safe

if TYPE_CHECKING:
    from burnish.bench.scripted_answers import ModelTokenizer, Played
    from burnish.config import Config
    from burnish.config.schema import CodecTrain, ProcessRewardModelTrain, SpeechTrain
    from burnish.lm.tokenizer import Tokenizer
    from burnish.policy import Advantages, Recipe, RewardBatch
    from burnish.tasks.base import TaskSet


SHOWN_TEXT = 20_000
"""Characters of a document whose tokens are counted."""
MASKED = "▒"


def try_(
    words: Words = None, prompts: Annotated[int, Option(min=1, help="How many to look at.")] = 3
) -> int:
    """See what a recipe feeds the model and what answers would earn, without a model.

    Three prompts go through a scripted model that gives the right answer, a
    wrong one and none; where there are experts, also theirs and one that
    belongs to another prompt. Tokens are coloured by who wrote them; rewards
    come with their parts and evidence, and with the advantages and loss terms
    that training would make of them. Where a reward of your own raises, the
    exception is shown and the command ends with an error.

    \b
      burnish try grpo
      burnish try my.toml task.path=other.jsonl
    """
    import anyio

    from burnish.bench.scripted_answers import answer_fields, play_all, scripts_for, tokenizer_for
    from burnish.config.schema import CodecTrain, DiffusionTrain, SpeechTrain
    from burnish.lm.base import Sampling
    from burnish.rewards.config import build_all
    from burnish.rewards.scorer import bind_check
    from burnish.tasks.config import build as build_tasks

    asked = resolve(words or [])
    config = asked.resolved.value
    if isinstance(config.train, CodecTrain):
        return _try_sounds(config.train, asked, prompts)
    if isinstance(config.train, SpeechTrain):
        return _try_speech(config.train, asked, prompts)
    if not config.train.needs_tasks:
        return _try_text(config, asked, prompts)
    tasks = build_tasks(config.task, config.run.seed, asked.root)
    if not config.rewards or isinstance(config.train, DiffusionTrain):
        return _try_demonstrations(config, asked, tasks, prompts)
    scorer = build_all(config.rewards, base=asked.root)
    bind_check(scorer, tasks.fields)
    found = tokenizer_for(_tokenizer_name(config, asked.root))
    say(f"recipe {asked.recipe}: task '{tasks.name}', scripted model, {found.what}", style="bold")
    for note in tasks.notes:
        say(f"data: {note}")
    _print_judges(config, tasks.sample(1), asked.root)
    sampling = Sampling(max_tokens=config.rollout.budget, stop=config.rollout.stop)
    chosen, scripts = scripts_for(tasks, prompts, answer_fields(scorer), config.experts.field)
    deadline_s = config.rollout.score_timeout_s
    rollout = config.rollout.build_evaluation(asked.root)
    played = anyio.run(
        partial(play_all, chosen, scripts, scorer, found, sampling, deadline_s, rollout)
    )
    out.print(legend())
    for place, play in enumerate(played, 1):
        _print_play(place, play, found)
    print_terms(played, config, found.tokenizer)
    broken = _broken_rewards(played)
    for name, reason in broken.items():
        complain(f"reward '{name}' raised {reason}. Mend it before you train.")
    return USER if broken else 0


def _tokenizer_name(config: Config, root: Path) -> str:
    """The model whose tokenizer is shown; a new one has that of `tiny` or of a folder."""
    from burnish.lm.base import DIFFUSION
    from burnish.lm.new_model import BYTE, NEW

    if config.model.path != NEW:
        return config.model.path.removeprefix(DIFFUSION)
    given = config.model.new.tokenizer
    return "tiny" if given == BYTE else str(root / given)


def _try_sounds(train: CodecTrain, asked: Asked, count: int) -> int:
    from burnish.tasks.sounds import SoundCorpus

    sizes = train.sizes
    corpus = SoundCorpus(train.sources, sizes.sampling_rate, train.column, asked.root)
    corpus.check()
    say(f"recipe {asked.recipe}: sounds of {one_line(corpus.name)}", style="bold")
    for place, clip in enumerate(itertools.islice(corpus.clips(), count), 1):
        seconds = len(clip.samples) / sizes.sampling_rate
        peak = float(abs(clip.samples).max())
        say(f"sound {place}: {one_line(clip.name)}, {seconds:.2f} s, peak {peak:.2f}")
    hop = sizes.frame_hop * math.prod(sizes.strides)
    rate = sizes.sampling_rate / hop
    say(
        f"a step reads {train.batch} crops of {train.seconds:g} s at {sizes.sampling_rate:,} Hz; "
        f"{rate:g} latents of {sizes.latent_size} a second, {rate * sizes.latent_size:,.0f} floats, "
        f"{sizes.bottleneck}"
    )
    return 0


def _try_speech(train: SpeechTrain, asked: Asked, count: int) -> int:
    from burnish.training.sound_data import speech_corpus

    corpus = speech_corpus(train, train.sources, asked.root)
    corpus.check()
    say(f"recipe {asked.recipe}: speech of {one_line(corpus.name)}", style="bold")
    for place, clip in enumerate(itertools.islice(corpus.clips(), count), 1):
        seconds = len(clip.samples) / corpus.rate
        voice = f", voice {one_line(clip.voice)}" if clip.voice else ""
        say(f"row {place}: {one_line(clip.name)}, {seconds:.2f} s{voice}: {one_line(clip.text)}")
    if corpus.note:
        say(one_line(corpus.note))
    has_tokenizer = (asked.root / Path(train.tokenizer).expanduser()).is_dir()
    absent = "" if has_tokenizer else ", which is not there yet: burnish train codec makes one"
    say(f"a step reads {train.batch} rows; latents by {one_line(train.tokenizer)}{absent}")
    return 0


def _try_text(config: Config, asked: Asked, count: int) -> int:
    from burnish.bench.scripted_answers import tokenizer_for
    from burnish.config.schema import DiffusionTrain, PretrainTrain
    from burnish.tasks.corpus import Corpus

    train = config.train
    assert isinstance(train, PretrainTrain | DiffusionTrain)
    corpus = Corpus(train.sources, train.column, train.separator, asked.root)
    corpus.check()
    found = tokenizer_for(_tokenizer_name(config, asked.root))
    say(f"recipe {asked.recipe}: text of {one_line(corpus.name)}, {found.what}", style="bold")
    separators: list[int] = []
    shown = 0
    for text in itertools.islice(corpus.documents(separators.append), count):
        shown += 1
        ids = found.tokenizer.encode(text[:SHOWN_TEXT])
        more = f" of its first {SHOWN_TEXT:,} characters" if len(text) > SHOWN_TEXT else ""
        say(f"document {shown}: {len(text.encode()):,} bytes, {len(ids):,} tokens{more}")
        say(f"  {one_line(' '.join(text[:400].split()))}", style="bright_black")
        if isinstance(train, DiffusionTrain):
            _print_masked(ids, found, derive(config.run.seed, "try", shown))
    if train.separator and shown and not separators:
        where = "not in the document" if shown == 1 else f"in none of the {shown} documents"
        say(one_line(corpus.unused_separator(f"{where} above")), style="yellow")
    size = train.batch * train.sequence
    apart = "do not see" if train.separate else "see"
    say(
        f"a step reads {train.batch} sequences of {train.sequence} tokens ({size:,}); documents in "
        f"one {apart} each other; {train.held_out_share:.0%} of the documents are held out"
    )
    return 0


def _try_demonstrations(config: Config, asked: Asked, tasks: TaskSet, count: int) -> int:
    from burnish.bench.scripted_answers import tokenizer_for
    from burnish.config.schema import DiffusionTrain, ProcessRewardModelTrain

    train, found = config.train, tokenizer_for(_tokenizer_name(config, asked.root))
    what = f"recipe {asked.recipe}: task '{tasks.name}', demonstrations, {found.what}"
    say(what, style="bold")
    for note in tasks.notes:
        say(f"data: {note}")
    is_text = isinstance(train, DiffusionTrain) and train.on == "text"
    out.print(legend())
    for place, task in enumerate(tasks.sample(count), 1):
        say()
        say(f"prompt {place}   task {one_line(task.id)}", style="bold")
        print_media(task, shared_blobs())
        if not is_text:
            prompt = found.tokenizer.render_spans(task.messages)
            out.print(coloured(prompt, found.tokenizer))
            say(f"tokens {counts(prompt)}; loss mask 0 on all of them", style="bright_black")
        if isinstance(train, ProcessRewardModelTrain):
            _print_steps(task, train)
            continue
        shown = task.fields.get(config.experts.field)
        if shown is None:
            say(f"no field '{one_line(config.experts.field)}': nothing to learn", style="yellow")
            continue
        ids = tuple(found.tokenizer.encode(str(shown)[:SHOWN_TEXT]))
        text = Text("  learned: ", style="bright_black")
        text.append(coloured([Span(Author.MODEL, ids)], found.tokenizer))
        text.append(f"   {len(ids)} tokens, loss mask 1 and on the end token", style="bright_black")
        out.print(text)
        if isinstance(train, DiffusionTrain):
            _print_masked(ids, found, derive(config.run.seed, "try", place))
    return 0


def _print_steps(task: Task, train: ProcessRewardModelTrain) -> None:
    from burnish.training.algorithms.process_reward_model import read_solution
    from burnish.training.labelled import UnusableRow

    try:
        solution = read_solution(task, train)
    except UnusableRow as bad:
        say(f"  no solution: {one_line(str(bad))}", style="yellow")
        return
    words = {1: ("right", "green"), 0: ("wrong", "red"), None: ("no label", "bright_black")}
    for step, label in zip(solution.steps, solution.labels, strict=True):
        word, style = words[label]
        say(f"  {word:>8}: {one_line(step)}", style=style)


def _print_masked(ids: Sequence[int], found: ModelTokenizer, seed: int) -> None:
    draw = random.Random(seed)
    tokens = [
        MASKED if draw.random() < 0.5 else safe(found.tokenizer.decode([id_])) for id_ in ids[:100]
    ]
    more = " ..." if len(ids) > 100 else ""
    say(f"   masked: {one_line(''.join(tokens))}{more}   (rate 0.5; {MASKED} is predicted)")


def _broken_rewards(played: Sequence[Played]) -> dict[str, str]:
    found: dict[str, str] = {}

    def look(reward: Reward) -> None:
        if reward.status is Status.REWARD_ERROR and not reward.parts:
            found.setdefault(reward.name, reward.reason)
        for part in reward.parts:
            look(part)

    for play in played:
        for reward in play.rewards:
            look(reward)
    return found


def _print_judges(config: Config, tasks: Sequence[Task], root: Path) -> None:
    """What training would ask its judges; and the rewards that ask a server, which a dry run asks
    too."""
    from burnish.cli.judge_session import print_judge_calls
    from burnish.rewards.judge_reward import JudgeRewardConfig

    print_judge_calls(config, tasks, root)
    for reward in config.rewards:
        if isinstance(reward, JudgeRewardConfig) and "://" in reward.model:
            say(
                f"judge: reward '{reward.title}' asks {reward.model}. Where no server answers there, "
                "it has a status instead of a value and every advantage is 0.",
                style="yellow",
            )


def _print_play(number: int, play: Played, found: ModelTokenizer) -> None:
    task = play.task
    say()
    say(f"prompt {number}   task {task.id}", style="bold")
    fields = "  ".join(f"{k}={one_line(str(v))[:60]}" for k, v in task.fields.items())
    say(f"fields {fields}", style="bright_black")
    print_media(task, shared_blobs())
    prompt = play.trajectories[0].spans[:-1]
    out.print(coloured(prompt, found.tokenizer))
    say(f"tokens {counts(prompt)}; loss mask 0 on all of them", style="bright_black")
    for line, trajectory, reward in zip(play.lines, play.trajectories, play.rewards, strict=True):
        answer = trajectory.spans[-1]
        text = Text(f"{line.label:>9}: ", style="bright_black")
        text.append(coloured([answer], found.tokenizer))
        text.append(f"   {_tokens(answer, found)}", style="bright_black")
        if trajectory.finish.value != "stop":
            text.append(f" finish {trajectory.finish.value}", style="yellow")
        out.print(text)
        out.print(reward_tree(reward))


def _tokens(answer: Span, found: ModelTokenizer) -> str:
    ids = answer.token_ids
    shown = " ".join(
        f"{safe(found.tokenizer.decode([id_], skip_special=False))!r}" for id_ in ids[:24]
    )
    more = " ..." if len(ids) > 24 else ""
    return f"{len(ids)} tokens, loss mask 1: {shown}{more}"


# --- what training makes of them


def print_terms(played: Sequence[Played], config: Config, tokenizer: Tokenizer) -> None:
    """One line an answer: reward, advantage, clip bounds and pull; then the loss by part."""
    say()
    try:
        policy = import_policy()
    except UserError as error:
        say(str(error), style="yellow")
        return
    rollouts = [
        (line.label, trajectory, reward)
        for play in played
        for line, trajectory, reward in zip(
            play.lines, play.trajectories, play.rewards, strict=True
        )
    ]
    recipe = _without_model(config.policy)
    batch = dataclasses.replace(
        _rewards(policy, played, recipe, tokenizer), max_tokens=config.rollout.budget
    )
    values = policy.advantages(recipe, batch)
    out_of_loss, pulls = _loss(policy, config, [t for _, t, _ in rollouts], values)
    say("what training would make of these answers, each prompt a group of its own", style="bold")
    titles = ("answer", "reward", "advantage", "kept", "ratio may be", "pull on log-prob")
    per_rollout = values.per_rollout().tolist()
    rows: list[tuple[str | Text, ...]] = []
    for row, (label, trajectory, reward) in enumerate(rollouts):
        advantage = per_rollout[row]
        # Bounds of an answer; their means where credit is given token by token.
        low, high = (float(b[row].double().mean()) for b in (values.low_B, values.high_B))
        rows.append(
            (
                f"{trajectory.task_id} {label}",
                reward_cell(reward),
                Text(f"{advantage:+.3f}", style=value_style(advantage)),
                "yes" if bool(values.keep_B[row]) else "no",
                f"{1 - low:.2f} .. {1 + high:.2f}",
                f"{pulls[row]:+.4f}",
            )
        )
    print_rows(titles, rows, 0)
    parts = "  ".join(f"{name} {number(float(v), 4)}" for name, v in out_of_loss.parts.items())
    say(
        f"loss terms at the first update: {parts}  (total {number(float(out_of_loss.total.detach()), 4)})"
    )
    say(
        "The ratio is 1 there, so a surrogate near 0 is no sign of nothing learned: the pull, "
        "minus the loss's gradient summed over an answer's tokens, is what moves the model.",
        style="bright_black",
    )


def _without_model(recipe: Recipe) -> Recipe:
    """The recipe as far as it can be played without a model; a line says what is left out."""

    if recipe.contrastive:
        say("The contrastive reward reads hidden states: left out here.", style="yellow")
    if recipe.calibration:
        say("The unit of the rewards is these answers, not the start model's.", style="yellow")
    if recipe.needs_greedy:
        say(
            "The baseline is the mean of these answers, not the reward of a greedy one.",
            style="yellow",
        )
    if recipe.gae:
        say("The critic says 0 of every token here, as it does at the first step.", style="yellow")
    if recipe.imitation:
        say("The imitation of experts needs a model: its term is 0 here.", style="yellow")
    kept = tuple(piece for piece in recipe.shaping if piece is not recipe.contrastive)
    return msgspec.structs.replace(recipe, shaping=kept)


def _rewards(
    policy: Any, played: Sequence[Played], recipe: Recipe, tokenizer: Tokenizer
) -> RewardBatch:
    import torch

    from burnish.training.weighing import Segmenter, pad_segments, step_scores

    trajectories = [t for play in played for t in play.trajectories]
    rewards = [r for play in played for r in play.rewards]
    weights = {part.name: part.weight for r in rewards for part in (r.parts or (r,))}
    found = [[r.components.get(name) for name in weights] for r in rewards]
    rows = [[math.nan if value is None else value for value in row] for row in found]
    numbers = [index for index, play in enumerate(played) for _ in play.rewards]
    segments_BT = steps_BJ = None
    if recipe.stepwise:
        number = Segmenter(tokenizer, recipe.stepwise.headings, recipe.stepwise.split)
        segments = [number(trajectory) for trajectory in trajectories]
        segments_BT = pad_segments(segments)
        if recipe.stepwise.by_steps:
            steps_BJ, segments_BT = step_scores(rewards, recipe.stepwise.rewards[0], segments)
    batch: RewardBatch = policy.RewardBatch(
        rewards_BK=torch.tensor(rows, dtype=torch.float64),
        weights_K=torch.tensor(list(weights.values()), dtype=torch.float64),
        groups_B=torch.tensor(numbers),
        lengths_B=torch.tensor([sum(t.loss_mask) for t in trajectories]),
        truncated_B=torch.tensor([t.finish is Finish.LENGTH for t in trajectories]),
        names=tuple(weights),
        segments_BT=segments_BT,
        steps_BJ=steps_BJ,
    )
    if recipe.gae:
        lengths_B = batch.lengths_B
        none_BT = torch.zeros(len(rows), max([1, *lengths_B.tolist()]), dtype=torch.float64)
        batch = dataclasses.replace(batch, values_BT=none_BT, kl_BT=none_BT)
    if recipe.needs_greedy:
        means = [batch.rewards_BK[batch.groups_B == group].nanmean(0) for group in numbers]
        batch = dataclasses.replace(batch, baselines_BK=torch.stack(means))
    return batch


def _loss(
    policy: Any, config: Config, trajectories: Sequence[Trajectory], values: Advantages
) -> tuple[Any, list[float]]:
    """The loss where trainer, sampler and reference agree, and each answer's pull."""
    import torch

    longest = max(len(t.logprobs) for t in trajectories)
    mask_BT = torch.tensor([[i < len(t.logprobs) for i in range(longest)] for t in trajectories])
    if values.counted_BT is not None:
        mask_BT &= values.counted_BT
    logp_BT = torch.zeros(mask_BT.shape, dtype=torch.float64, requires_grad=True)
    same_BT = torch.zeros_like(logp_BT).detach()
    critic = values.critic
    batch = policy.LossBatch(
        logp_BT=logp_BT,
        old_logp_BT=same_BT,
        mask_BT=mask_BT,
        advantages_B=values.values_B,
        low_B=values.low_B,
        high_B=values.high_B,
        keep_B=values.keep_B,
        ref_logp_BT=same_BT,
        entropy_BT=torch.zeros_like(same_BT),
        max_tokens=config.rollout.budget,
        values_BT=None if critic is None else critic.values_BT,
        old_values_BT=None if critic is None else critic.values_BT,
        returns_BT=None if critic is None else critic.returns_BT,
    )
    result = policy.loss(config.policy, batch)
    result.total.backward()
    gradient_BT = logp_BT.grad if logp_BT.grad is not None else same_BT
    return result, (-gradient_BT).sum(1).tolist()
