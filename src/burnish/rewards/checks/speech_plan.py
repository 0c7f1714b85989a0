"""Does a plan of a scene do what was asked of it? Scored from its text, or by rendering it.

    [[rewards]]
    kind = "speech_plan"        # the task's field `scene` is the script, `goals` what is asked

A plan that cannot be read, or fills in nothing, has the value 0, and a goal of a sentence of which a
plan says nothing does not hold: silence is no plain voice. Goals are tables with a sentence's place, an attribute
(`pitch_st`, `rate`, `gain_db`, `range`) and a direction (-1 or 1, or 0 for the voice's own); they are
checked on the numbers that the captions become, so that a planner can be sampled and trained
without a sound. `part = "render"` speaks the scene by espeak-ng and measures the same goals on it;
`heard_...` mixes the whole scene and marks what is heard in it, as `follow_report` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from burnish.arguments import as_numbers
from burnish.boundary import Count, public
from burnish.errors import ArgumentError, UserError
from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig, RuleCheck

if TYPE_CHECKING:
    from burnish.models.long_speech import Manner, Scene

Part = Literal[
    "all", "valid", "complete", "follow", "arc", "render", "heard_pitch", "heard_rate", "heard_loudness",
    "heard_arc", "heard_overlap", "heard_gaps", "heard_snr", "heard_voice", "heard_words",
]  # fmt: skip
HEARD = "heard_"
ENOUGH = {"pitch_st": 0.5, "rate": 0.05, "gain_db": 1.0, "range": 0.1}
"""How far an attribute has to be from the voice's own to count as higher or lower."""
WEIGHTS = {"valid": 0.2, "complete": 0.2, "follow": 0.6}
"""Of the parts in `all`."""


class SpeechPlanConfig(CheckConfig, frozen=True, tag="speech_plan"):
    """How well a plan of a scene follows what was asked; values in [0, 1].

    `valid`: it can be read. `complete`: share of open captions that are filled in with words that
    change the voice or say that nothing changes. `follow`: share of the goals that hold. `arc`:
    Spearman's correlation of the task's `arousal` with the planned pitch and loudness, at least 0.
    `all`: 0.2 valid + 0.2 complete + 0.6 follow. `render`: the goals, measured on speech. `heard_pitch`,
    `heard_rate`, `heard_loudness`, `heard_arc`: correlation of what is asked and heard in the mixed scene.
    `heard_overlap`, `heard_gaps`: nearness to real meetings. `heard_snr`: to the ratio asked for.
    `heard_voice`: how alike one speaker's sentences are. `heard_words`: words that Whisper understands.
    """

    part: Part = "all"
    """Which aspect of the plan is paid."""
    dimensions: tuple[str, ...] = ("tone", "pace", "volume")
    """Captions that a complete plan has."""

    @property
    def title(self) -> str:
        """Several parts are usual in one recipe, so each has its own name."""
        return self.name or ("speech_plan" if self.part == "all" else f"speech_plan_{self.part}")


class Goal(Struct, frozen=True):
    sentence: Count
    attribute: Literal["pitch_st", "rate", "gain_db", "range"]
    direction: Literal[1, 0, -1]

    def holds(self, change: float) -> bool:
        """True if an attribute that differs so much from the voice's own is as asked."""
        enough = ENOUGH[self.attribute]
        return abs(change) < enough if not self.direction else self.direction * change >= enough


@public
def read_goals(given: Sequence[Goal], sentences: Count) -> list[Goal]:
    """The goals of a task's field: tables with sentence, attribute and direction."""
    for goal in given:
        if goal.sentence >= sentences:
            raise ArgumentError(
                f"goals: got sentence {goal.sentence} of {sentences}, counted from 0"
            )
    return list(given)


class SpeechPlan(RuleCheck[SpeechPlanConfig]):
    """Reads the plan, resolves its captions and compares the numbers with the goals."""

    uses_answer = True

    def __init__(self, config: SpeechPlanConfig) -> None:
        super().__init__(config)
        asked = {"follow": "goals", "all": "goals", "render": "goals", "arc": "arousal"}
        self.needs = frozenset({"scene", *([asked[config.part]] if config.part in asked else [])})

    def judge(self, task: Task, response: Response) -> Reward:
        from burnish.models.long_speech import read_scene
        from burnish.speech.plan_text import open_slots, read_plan

        try:
            scene = read_scene(task.fields["scene"])
            goals = read_goals(task.fields.get("goals") or [], len(scene.sentences))
        except ArgumentError as error:
            return self.abstained(f"the task's script or goals cannot be read: {error}")
        try:
            planned = read_plan(scene, response.text)
        except ArgumentError as error:
            return self.decided(0.0, str(error))
        dimensions: Any = self.config.dimensions
        if planned.sources == scene.sources and open_slots(scene, dimensions):
            return self.decided(0.0, "the plan fills in nothing")
        return self._value(scene, planned, goals, task.fields)

    def _value(
        self, scene: Scene, planned: Scene, goals: Sequence[Goal], fields: Mapping[str, Any]
    ) -> Reward:
        from burnish.speech.manner import resolve_manners

        manners = resolve_manners(planned).manners
        part = self.config.part
        if part == "valid":
            return self.decided(1.0, "the plan can be read")
        if part == "arc":
            return self._arc(manners, fields["arousal"])
        if part == "complete":
            share = self._complete(scene, planned)
            return self.decided(share, f"{share:.0%} of the open captions are filled in")
        if part.startswith(HEARD):
            return self._heard(planned, part.removeprefix(HEARD), fields.get("arousal"))
        if not goals:
            return self.abstained("the task has no goals: nothing to follow")
        if part == "render":
            return self._rendered(scene, planned, goals)
        planned_for = [goal for goal in goals if self._is_planned(planned, goal)]
        held = [goal for goal in planned_for if goal.holds(_change(manners, goal))]
        follow = len(held) / len(goals)
        saw = f"{len(held)} of {len(goals)} goals hold"
        if part == "follow":
            return self.decided(follow, saw)
        values = {"valid": 1.0, "complete": self._complete(scene, planned), "follow": follow}
        total = sum(weight * values[name] for name, weight in WEIGHTS.items())
        return self.decided(total, f"{saw}; complete {values['complete']:.0%}")

    def _is_planned(self, planned: Scene, goal: Goal) -> bool:
        """Whether somebody has said how the goal's sentence is spoken."""
        sentence = planned.sentences[goal.sentence]
        return any(getattr(sentence, name) for name in self.config.dimensions)

    def _complete(self, scene: Scene, planned: Scene) -> float:
        from burnish.speech.manner import read_caption
        from burnish.speech.plan_text import open_slots

        dimensions: Any = self.config.dimensions
        asked = open_slots(scene, dimensions)
        left = set(open_slots(planned, dimensions))
        known = 0
        for path in asked:
            if path not in left:
                place, _, name = path.removeprefix("sentences[").partition("].")
                dimension: Any = name
                reading = read_caption(getattr(planned.sentences[int(place)], name), dimension)
                known += not reading.unknown or bool(reading.add or reading.fixed)
        return known / len(asked) if asked else 1.0

    def _arc(self, manners: Sequence[Manner], arousal: Any) -> Reward:
        from burnish.models.long_speech import arc_score

        try:
            score = arc_score(arousal, [one.pitch_st + one.gain_db for one in manners])
        except ArgumentError as error:
            return self.abstained(f"the task's arousal cannot be used: {error}")
        if score is None and len(set(as_numbers("arousal", arousal))) < 2:
            return self.abstained("the task's arousal is flat: no order was asked for")
        if score is None:
            return self.decided(0.0, "the plan is flat: nothing follows the arc")
        return self.decided(max(0.0, score), f"rank correlation {score:.2f} with the arc")

    def _rendered(self, scene: Scene, planned: Scene, goals: Sequence[Goal]) -> Reward:
        """Each goal on speech: the sentence as planned beside the same sentence without a plan."""
        from burnish.speech.following import rendered_changes

        changes = rendered_changes(scene, planned, {(g.sentence, g.attribute) for g in goals})
        held = 0
        for goal in goals:
            change = changes[goal.sentence, goal.attribute]
            if change is None:
                return self.abstained(
                    f"{goal.attribute} of sentence {goal.sentence} cannot be measured in the speech"
                )
            held += self._is_planned(planned, goal) and goal.holds(change)
        return self.decided(held / len(goals), f"{held} of {len(goals)} goals hold in the speech")

    def _heard(self, planned: Scene, figure: str, arousal: Any) -> Reward:
        """One figure of the mixed scene; the task's arousal, where there is one, is the arc asked for."""
        from burnish.speech.cast import cast_scene
        from burnish.speech.following import follow_report, heard_marks
        from burnish.speech.render import mix_scene

        try:
            cast = cast_scene(planned)
        except UserError as error:  # a plan changes no speaker
            return self.abstained(f"the task's scene cannot be spoken: {error}")
        try:
            mix, _ = mix_scene(planned, cast)
        except ArgumentError as error:
            return self.decided(0.0, f"the plan cannot be spoken: {error}")
        asked = arousal if figure == "arc" else None
        try:
            report = follow_report(
                mix, voices=figure == "voice", words=figure == "words", asked_arousal=asked
            )
        except ArgumentError as error:
            return self.abstained(f"the task's arousal cannot be used: {error}")
        mark = heard_marks(report)[figure]
        if mark is None:
            return self.abstained(f"{figure} cannot be measured: the scene asks for none, or has too little of it")  # fmt: skip
        return self.decided(min(mark, 1.0), f"{figure} in the mixed scene: {mark:.2f}")


def _change(manners: Sequence[Manner], goal: Goal) -> float:
    own = 1.0 if goal.attribute in ("rate", "range") else 0.0
    return float(getattr(manners[goal.sentence], goal.attribute)) - own
