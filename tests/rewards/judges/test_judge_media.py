"""Judges see the images and sounds of a request, fenced as material; or are told that they do not."""

from __future__ import annotations

import anyio
import pytest
from hostile_server import HostileServer, ok

from burnish.errors import UserError
from burnish.lm.base import Sampling, TooMuchMedia
from burnish.lm.http import OpenAILM
from burnish.lm.replay import ScriptedLM
from burnish.lm.wire import MediaLimits
from burnish.records import ImagePart, Message, Response, Status, Task, TextPart
from burnish.rewards.judge_reward import JudgeRewardConfig
from burnish.rewards.judges.build import build_judge
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import MEDIA_BEFORE, MEDIA_BEHIND, UNSEEN, as_user
from burnish.store.blobs import Blobs

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
IMAGE, SOUND = ImagePart("a" * 64), ImagePart("b" * 64)
WINNER = '{"reasons": "It is blue.", "winner": "A"}'
RUBRIC = {
    "question": "What colour?",
    "items": [
        {
            "id": "e1", "tier": "essential", "title": "Colour", "text": "Names the colour.",
            "weight": 1,
        }
    ],
}  # fmt: skip


def task(*media):
    content = (TextPart("What colour is "), *media, TextPart("?"))
    return Task("t", (Message("user", content),), {"rubric": RUBRIC, "answer": "blue"})


RESPONSES = [Response("r1", "It is blue."), Response("r2", "It is red.")]


def asked_by(method, *, media="send", parts=(IMAGE, SOUND), **options):
    """The messages that a judge sends first."""
    lm = ScriptedLM(lambda messages, index: WINNER)
    judge = build_judge(method, JudgeModel(lm, repairs=0, media=media), options)
    responses = RESPONSES if judge.scope.name != "POINT" else RESPONSES[:1]
    anyio.run(judge.score, task(*parts), responses)
    return lm.calls[0].prompt


@pytest.mark.parametrize(
    "method", ["direct", "point", "list", "openrs", "genrm", "skill_rm", "atp"]
)
def test_every_judge_that_shows_the_request_shows_its_media(method):
    (message,) = asked_by(method)
    assert message.media == (IMAGE, SOUND)
    texts = [part.text for part in message.content if isinstance(part, TextPart)]
    assert "[image aaaaaaaaaaaa]" in texts[0]
    assert texts[0].endswith(MEDIA_BEFORE)
    # The marks of the images are those of the texts: nothing in a picture can know them.
    mark = texts[1].split()[-2]
    assert texts[1].strip() == f"=== image aaaaaaaaaaaa {mark} ==="
    assert texts[2].strip().startswith(f"=== end of image aaaaaaaaaaaa {mark} ===")
    assert f"{mark} ===" in texts[0]
    # Ours are the last words, whatever an image says.
    assert texts[-1].strip() == MEDIA_BEHIND


@pytest.mark.parametrize("method", ["direct", "point", "openrs"])
def test_a_judge_without_media_is_asked_as_ever(method):
    (message,) = asked_by(method, parts=())
    assert isinstance(message.content, str)
    assert MEDIA_BEHIND not in message.content


def test_a_judge_of_marks_gets_text_and_is_told_so():
    (message,) = asked_by("direct", media="mark")
    assert isinstance(message.content, str)
    assert "[image aaaaaaaaaaaa]" in message.content
    assert message.content.endswith(UNSEEN)


def test_the_setting_is_part_of_the_fingerprint():
    lm = ScriptedLM([])
    assert JudgeModel(lm).fingerprint != JudgeModel(lm, media="mark").fingerprint


def test_a_repeated_image_is_sent_once():
    (message,) = as_user("text", (IMAGE, IMAGE))
    assert message.media == (IMAGE,)


def test_half_a_character_does_not_lose_the_image():
    lm = ScriptedLM(lambda messages, index: WINNER)
    judge = build_judge("direct", JudgeModel(lm, repairs=0))
    anyio.run(judge.score, task(IMAGE), [Response("r1", "half \ud83d"), RESPONSES[1]])
    assert all(call.prompt[0].media == (IMAGE,) for call in lm.calls)


def test_a_text_model_refuses_and_names_the_way_out(tmp_path):
    local = pytest.importorskip("burnish.lm.local", reason="torch is not installed")
    from burnish.lm.folder import load_model
    from burnish.lm.new_model import tiny_model

    lm = local.LocalLM(load_model(tiny_model(tmp_path / "tiny"), device="cpu"))
    judge = build_judge("point", JudgeModel(lm))
    line = r"reads text only.* Or set media = 'mark' \(--media mark\)"
    with pytest.raises(UserError, match=line):
        anyio.run(judge.score, task(IMAGE), RESPONSES[:1])


def test_another_mistake_is_not_blamed_on_the_media():
    class Refusing(ScriptedLM):
        async def sample(self, prompt, sampling):
            raise UserError("no such adapter; expected one of a, b")

    judge = build_judge("point", JudgeModel(Refusing([])))
    with pytest.raises(UserError, match=r"no such adapter; expected one of a, b$"):
        anyio.run(judge.score, task(IMAGE), RESPONSES[:1])


class TestLimits:
    """How many images and sounds a request may hold, and how large."""

    def ask(self, blobs, message, limits):
        async def main():
            async with OpenAILM(server.url, "m", blobs=blobs, media=limits) as lm:
                return await lm.sample([message], Sampling())

        with HostileServer([ok("fine")]) as server:
            try:
                return anyio.run(main), server.requests
            except TooMuchMedia as error:
                return error, server.requests

    @pytest.mark.parametrize(
        ("count", "megabytes", "line"),
        [
            (
                2,
                1,
                "holds 3 images and sounds of 0.0 MB; expected at most 2 a request (media_count)",
            ),
            (3, 0.0001, "a request (media_count) and 0.0001 MB (media_mb)"),
        ],
    )
    def test_too_many_and_too_large_are_never_sent(self, tmp_path, count, megabytes, line):
        blobs = Blobs(tmp_path)
        parts = [blobs.add(PNG + bytes([number])) for number in range(3)]
        limits = MediaLimits(count=count, megabytes=megabytes)
        error, requests = self.ask(blobs, Message("user", tuple(parts)), limits)
        assert line in str(error)
        assert not requests

    def test_within_the_limits(self, tmp_path):
        blobs = Blobs(tmp_path)
        message = Message("user", (blobs.add(PNG),))
        _, requests = self.ask(blobs, message, MediaLimits(count=1, megabytes=1))
        assert len(requests) == 1

    def test_for_a_judge_it_is_a_status_and_no_crash(self, tmp_path):
        config = JudgeRewardConfig(method="point", model="http://127.0.0.1:9/v1#m", media_count=1)
        (reward,) = anyio.run(config.build(tmp_path).score, task(IMAGE, SOUND), RESPONSES[:1])
        assert reward.value is None
        assert reward.status is not Status.OK
        assert "at most 1 a request (media_count)" in reward.reason
