"""The list of commands: one line each here, one function each in the files beside this one.

`burnish --help` reads this list and imports no command; a command's file is imported when it is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer import Option
from typer.core import TyperCommand, TyperGroup


class LazyCommand(TyperCommand):
    """A command as the help lists it; its file is imported when somebody types its name."""

    def __init__(self, name: str, place: str, summary: str, *, hidden: bool = False) -> None:
        super().__init__(name, short_help=summary, hidden=hidden)
        self.place = place
        """`file:function`, in this folder."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Hand the arguments to the real command, which runs in place of this one."""
        single = typer.Typer(add_completion=False, rich_markup_mode="rich")
        single.command(self.name)(self.function())
        command = typer.main.get_command(single)
        return command.make_context(info_name, args, parent=parent, **extra)

    def function(self) -> Any:
        """The function of the command, from its file."""
        file, _, name = self.place.partition(":")
        return getattr(import_module(f"burnish.cli.{file}"), name)


class DefaultCommand(LazyCommand):
    """The command of a group that needs no word of its own: usage and errors name the group."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        return super().make_context(parent.info_name, args, parent=parent.parent, **extra)


class DefaultGroup(TyperGroup):
    """A group that takes a word which is none of its commands for its default's argument.

    So `burnish judge FILE` and `burnish judge probe FILE` can share a word.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            default = next(n for n, c in self.commands.items() if isinstance(c, DefaultCommand))
            args = [default, *args]
        return super().parse_args(ctx, args)


# fmt: off
COMMANDS = (
    LazyCommand("train", "train:train", "Train a model; without a recipe, the quick start on the embedded model."),
    LazyCommand("align", "align:align", "Move a policy, or any system prompt, from a text file into a model's weights."),
    LazyCommand("sweep", "sweep:sweep", "Train a grid of settings and seeds, as many runs at once as fit."),
    LazyCommand("init", "init:init", "Write a commented recipe, task and reward file to start from."),
    LazyCommand("try", "dry_run:try_", "See what a recipe feeds the model and what answers would earn, without a model."),
    LazyCommand("runs", "runs:runs", "List runs: status, steps, the held-out score before and after, and why a run ended early."),
    LazyCommand("show", "show:show", "Open a run: its curves, a step's groups, or one answer and why it got its reward."),
    LazyCommand("eval", "eval:eval_", "Score a model's greedy answers to held-out tasks, with an interval."),
    LazyCommand("generate", "generate:generate", "Sample a model: prompts in, JSON lines out."),
    LazyCommand("chat", "chat:chat", "Talk to a model. /help lists what else can be typed."),
    LazyCommand("convert", "convert:convert", "Make a causal model the start of a masked diffusion model, or of one that sees images."),
    LazyCommand("variance", "variance:variance", "How much of a diffusion model's loss is noise of mask, rate and data; which sampler to choose."),
    LazyCommand("layers", "layers:layers", "How much worse a model predicts text without each layer, and without the last quarter."),
    LazyCommand("norms", "norms:norms", "How much longer a model's hidden states are than what it reads, layer by layer."),
    LazyCommand("compare", "compare:compare", "Compare runs: a paired test of two, or a table of many with intervals over seeds."),
    LazyCommand("bench", "bench:bench", "Measure a judge on a published benchmark, over all, decided and valid items."),
    LazyCommand("report", "audit:report", "Write what a run came to as one file: curves, forecast and fact, samples, audit, versions."),
    LazyCommand("audit", "audit:audit", "Is it learning, or pleasing the reward? What moved in a run and was paid, ranked."),
    LazyCommand("methods", "methods:methods", "List the shipped methods, one line each; with a name, the page that teaches it."),
    LazyCommand("config", "config:config", "Say what a config key means: its type, default and bounds, and what it goes with."),
    LazyCommand("export", "runs:export", "Write a run's samples or metrics as one file for other tools."),
    LazyCommand("view", "view:view", "Look at runs in a browser: curves, groups, single rollouts, search, comparison."),
    LazyCommand("search", "search:search", "Search a folder or file of texts; the index is built once and kept."),
    LazyCommand("speak", "speak:speak", "Speak a script or any text with several voices, overlaps, a room and a background."),
    LazyCommand("speak-label", "speak:speak_label", "Say of every recording who speaks when, how, and over what; nothing is thrown away."),
    LazyCommand("serve-reward", "serve_reward:serve_reward", "Serve a recipe's rewards or your own scorer over HTTP, for any trainer."),
    LazyCommand("serve-model", "serve_model:serve_model", "Serve a model folder to a trainer: token ids in, token ids and log-probs out."),
    LazyCommand("doctor", "doctor:doctor", "What this machine can do: devices, precision, extras, sandbox, models, disk."),
    LazyCommand("replay", "train:replay", "Run the step that a guard stopped once more, and arrive at the same line."),
    DefaultGroup(
        name="judge",
        help="Score or compare the responses of a file; [bold]judge probe[/] looks for biases.",
        rich_markup_mode="rich",
        commands=[
            DefaultCommand("file", "judge:judge", "Score or compare the responses of a file; every score explains itself.", hidden=True),
            LazyCommand("probe", "judge_probe:probe", "What a judge prefers besides quality: place, length, format, its own, with intervals."),
        ],
    ),
    TyperGroup(
        name="reward",
        help="[bold]reward check[/]: is a reward fit for training? [bold]reward bias[/]: what does it judge by besides quality? [bold]reward weigh[/]: which of several rewards would training follow?",
        no_args_is_help=True,
        rich_markup_mode="rich",
        commands=[
            LazyCommand("check", "reward_check:reward_check", "Is a reward fit for training? Range, ties, failures, cost, and what cheap edits do to it."),
            LazyCommand("bias", "reward_bias:reward_bias", "What does a reward judge by besides quality? Length, markdown, agreement with the user."),
            LazyCommand("weigh", "reward_weigh:reward_weigh", "Which reward would training follow? Four ways to join recorded rewards, side by side."),
        ],
    ),
    TyperGroup(
        name="prompt",
        help="[bold]prompt optimise[/]: search a better system prompt, accepted by a paired test.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        commands=[
            LazyCommand("optimise", "prompt:optimise", "Search a better system prompt for a task: propose, try, accept by a paired test, confirm."),
            LazyCommand("optimize", "prompt:optimise", "Search a better system prompt for a task: propose, try, accept by a paired test, confirm.", hidden=True),
        ],
    ),
    TyperGroup(
        name="cluster",
        help="[bold]cluster check[/]: which part of a run would run where. [bold]cluster plan[/]: how long a step would take.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        commands=[
            LazyCommand("check", "cluster:check", "Say which part of a run would run where, and what it would hold in memory."),
            LazyCommand("plan", "cluster:plan", "Predict how long a step takes on several GPUs, and what each of them holds."),
        ],
    ),
    TyperGroup(
        name="tokenizer",
        help="[bold]tokenizer train[/]: learn a vocabulary from texts, for a model of your own.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        commands=[
            LazyCommand("train", "tokenizer:train", "Learn byte-pair encoding from texts and write it as a folder."),
        ],
    ),
    TyperGroup(
        name="audio",
        help="Sounds and audio tokenizers: [bold]encode[/], [bold]decode[/], [bold]probe[/], [bold]metrics[/]; [bold]burnish train codec[/] trains one.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        commands=[
            LazyCommand("encode", "audio:encode", "Write the latents of a sound: z (T, D) in float16, with rate and bottleneck."),
            LazyCommand("decode", "audio:decode", "Write the sound of latents."),
            LazyCommand("probe", "audio:probe", "What a linear map reads from latents: accuracy for a label, beside untrained networks."),
            LazyCommand("metrics", "audio:metrics", "How good a copy of a sound is: LSD, SI-SDR, MCD, PESQ, STOI, words, voice."),
        ],
    ),
    TyperGroup(
        name="skill",
        help="Skills: folders or zips that say how a family of tasks is done or judged. [bold]skill distill[/] makes one from trajectories, [bold]skill evolve[/] from tasks.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        commands=[
            LazyCommand("validate", "skill:validate", "List everything that is wrong with a judge's skill, one line each."),
            LazyCommand("distill", "skill_distill:distill", "Distil trajectories into a skill: patches, a merge with support, checks, a diff."),
            LazyCommand("distil", "skill_distill:distill", "Distil trajectories into a skill: patches, a merge with support, checks, a diff.", hidden=True),
            LazyCommand("evolve", "skill_evolve:evolve", "Improve a skill on a recipe's tasks: play, distil, accept it only if held-out tasks do not suffer."),
            LazyCommand("show", "skill:show", "Show a skill as a judge would see it: procedure, resources, who may see what, hash."),
        ],
    ),
)
"""Every command, in the order of the help."""
# fmt: on

app = typer.Typer(
    name="burnish",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Exit codes: 0 done, 1 a bug, 2 your input, 3 stopped or failed outside, 130 Ctrl-C. "
    "BURNISH_DEBUG=1 shows tracebacks.",
    help=(
        "Post-training of language models with rewards that explain themselves.\n\n"
        "Start here: [bold]burnish train[/] trains the embedded model on arithmetic, offline, in "
        "minutes; [bold]burnish show[/] then opens the run and says why each answer got its "
        "reward.\n\n"
        "\b\n"
        "  burnish methods               what there is to train with\n"
        "  burnish try grpo              what the model would see and earn\n"
        "  burnish train grpo steps=20   train; key=value changes any setting\n"
        "  burnish sweep grpo optimiser.learning_rate=1e-6,3e-6 --seeds 3\n"
        "  burnish runs                  what has been trained here\n"
        "  burnish show --step 3         the answers of step 3 and their rewards\n"
        "  burnish compare RUN_A RUN_B   which of two runs is better, and how sure that is\n"
        "  burnish judge FILE.jsonl      score or compare responses, and say why\n"
    ),
)


def burnish_command() -> TyperGroup:
    """`burnish` itself with all its commands."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)  # it has a callback
    for command in COMMANDS:
        group.add_command(command)
    return group


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from burnish import __version__
        from burnish.cli.console import say

        say(f"burnish {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Options of the command itself."""
