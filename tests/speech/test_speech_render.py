"""From a script to a file: exact in chunks, continued after a stop, the same for the same seed."""

import importlib.util
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from burnish.errors import UserError
from burnish.media.sounds import read_sound
from burnish.models.long_speech import ToneEngine, place_sentences, read_scene
from burnish.models.long_speech.mixer import white_noise
from burnish.speech import (
    align_scene,
    draft_scene,
    plan_scene,
    read_script,
    render_scene,
    timeline_svg,
)
from burnish.speech.render import background_of, repeated, write_timeline

pytest.importorskip("soundfile", reason="writing sounds needs soundfile")
PLAY = """Ann: Are you there? I have been waiting here since seven.
Ben: Yes!
Ann: Enough! Run, there is danger!
Cid: Peace... perhaps it is only the wind.
Ben: Mhm.
"""


def lively():
    return plan_scene(draft_scene(PLAY), seed=3, lively=True)


def tones():
    return ToneEngine(8000, 0.03)


@pytest.mark.parametrize("seconds", [0.3, 1.0, 1000.0])
def test_any_chunk_gives_the_same_file(tmp_path, seconds):
    whole = render_scene(lively(), tmp_path / "a.wav", engine=tones(), seed=1)
    cut = render_scene(lively(), tmp_path / "b.wav", engine=tones(), seed=1, chunk_s=seconds)
    assert cut.path.read_bytes() == whole.path.read_bytes()


@pytest.mark.skipif(
    importlib.util.find_spec("espeakng_loader") is None, reason="not installed: espeakng-loader"
)
def test_espeak_in_chunks_is_espeak_at_once_and_the_seed_decides(tmp_path):
    files = [
        render_scene(lively(), tmp_path / f"{i}.wav", seed=seed, chunk_s=chunk).path.read_bytes()
        for i, (seed, chunk) in enumerate([(1, 0.7), (1, 600.0), (2, 600.0)])
    ]
    assert files[0] == files[1] != files[2]


class Stopping(ToneEngine):
    """Speaks some lines and then is killed."""

    def __init__(self, lines):
        super().__init__(8000, 0.03)
        self.lines, self.asked = lines, 0

    def speak(self, line):
        self.asked += 1
        if self.asked > self.lines:
            raise KeyboardInterrupt
        return super().speak(line)


def test_a_stopped_rendering_continues_and_ends_with_the_same_file(tmp_path):
    whole = render_scene(lively(), tmp_path / "whole.wav", engine=tones()).path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        render_scene(lively(), tmp_path / "scene.wav", engine=Stopping(4))
    assert not (tmp_path / "scene.wav").exists()
    second = Stopping(1000)
    render_scene(lively(), tmp_path / "scene.wav", engine=second)
    assert second.asked == len(lively().sentences) - 4  # the others were kept
    assert (tmp_path / "scene.wav").read_bytes() == whole
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("kind", ["cut", "empty", "junk", "no samples", "nan"])
def test_a_kept_line_that_is_damaged_is_spoken_again_and_said_once(tmp_path, kind):
    whole = render_scene(lively(), tmp_path / "whole.wav", engine=tones())
    with pytest.raises(KeyboardInterrupt):
        render_scene(lively(), tmp_path / "scene.wav", engine=Stopping(4))
    kept = sorted((tmp_path / ".scene.wav.parts").glob("*.npz"))
    assert len(kept) == 4
    for line in kept[:2]:
        if kind == "nan":
            np.savez(line, samples=np.full(9, np.nan), times=np.array("[[], []]"))
        elif kind == "no samples":
            np.savez(line, times=np.array("[[], []]"))
        else:
            data = line.read_bytes()
            line.write_bytes({"cut": data[:-40], "empty": b"", "junk": b"junk"}[kind])
    second = Stopping(1000)
    done = render_scene(lively(), tmp_path / "scene.wav", engine=second)
    assert second.asked == len(lively().sentences) - 2
    assert done.path.read_bytes() == whole.path.read_bytes()
    said = [one for one in done.warnings if one not in whole.warnings]
    assert said == ["kept lines that were damaged and spoken again: 2"]


def test_a_disk_without_room_for_the_kept_lines_is_one_line(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(UserError, match=r"\.part cannot be written: No space left on device$"):
        render_scene(lively(), tmp_path / "scene.wav", engine=tones())


@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_the_file_holds_the_samples(tmp_path, kind):
    done = render_scene(lively(), tmp_path / f"a.{kind}", engine=tones())
    sound = read_sound(done.path)
    assert sound.rate == 8000
    assert np.allclose(sound.samples, done.mix.render().numpy(), atol=2**-15)


def test_alignment_is_monotone_and_inside(tmp_path):
    done = render_scene(lively(), tmp_path / "a.wav", engine=tones())
    for row, span in zip(align_scene(done.mix), done.timeline, strict=True):
        starts = [one["start"] for one in row["words"]]
        assert starts == sorted(starts)
        assert all(row["start"] <= one["start"] <= one["end"] <= row["end"] for one in row["words"])
        assert 0 <= span["start"] <= span["end"] <= done.seconds + 1e-6


def test_backgrounds_are_repeatable_blocks():
    for caption in ("a busy street", "engine hum", "rain"):
        noise = background_of(caption)
        assert torch.equal(noise(1, 4, 800), noise(1, 4, 800))
        assert not torch.equal(noise(1, 4, 800), noise(1, 5, 800))
        steps = torch.cat([noise(1, block, 8000) for block in range(20)]).diff().abs()
        seams = steps[8000 - 1 :: 8000]
        assert seams.mean() < 1.5 * steps.mean(), "a click where a block ends"
    assert background_of("on a ship, far out") is not white_noise
    assert background_of("rain") is white_noise
    loop = repeated(torch.tensor([1.0, 2.0, 3.0]))
    assert torch.cat([loop(0, 0, 4), loop(0, 1, 4)]).tolist() == [1, 2, 3, 1, 2, 3, 1, 2]


def test_the_picture_has_every_speaker_and_escapes_text(tmp_path):
    scene = read_scene({"global": {"speakers": [{"id": "<b>"}, {"id": "B"}]}, "sentences": [
        {"speaker": "<b>", "text": "Is 1 < 2 & 3 > 2?"},
        {"speaker": "B", "text": "It is so.", "relation": {"type": "overlap", "seconds": 0.5}}]})  # fmt: skip
    spans = [{"start": 0.0, "end": 4.0, "cut": True}, {"start": 3.5, "end": 6.0, "cut": False}]
    text = timeline_svg(scene, spans)
    assert "&lt;b&gt;" in text
    assert "1 &lt; 2 &amp; 3" in text
    assert text.count("#d00000") == 2  # the overlap and the cut
    assert write_timeline(tmp_path / "a.svg", scene, spans).read_text() == text
    with pytest.raises(UserError, match=r"\.svg"):
        write_timeline(tmp_path / "a.gif", scene, spans)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"a\0b", b""])
def test_files_that_are_no_text_are_one_line(tmp_path, data):
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(UserError):
        read_script(tmp_path / "a.txt")
    with pytest.raises(UserError, match="cannot be read"):
        read_script(tmp_path / "absent.txt")


def test_a_picture_of_control_characters_is_still_xml():
    scene = read_scene({"global": {"speakers": [{"id": "A\x01"}]}, "sentences": [{"speaker": "A\x01", "text": "one \x02 two"}]})  # fmt: skip
    ElementTree.fromstring(timeline_svg(scene, [{"start": 0.0, "end": 2.0, "cut": False}]))


def test_an_overlap_that_a_planner_wrote_is_as_long_as_it_can_be():
    document = {"global": {"speakers": [{"id": "A"}, {"id": "B"}]}, "sentences": [{"speaker": "A", "text": "Yes."}, {"speaker": "B", "text": "No.", "relation": {"type": "overlap", "seconds": 9.0}}]}  # fmt: skip
    with pytest.raises(UserError, match="expected at most 1"):
        place_sentences(read_scene(document), [1.0, 1.0])
    document["sources"] = {"sentences[1].relation.seconds": "plan"}
    first, second = place_sentences(read_scene(document), [1.0, 1.0])
    assert second["start"] == first["start"]


class Own:
    """An engine of somebody's own, which breaks off in its second line until it is mended."""

    sample_rate = 8000

    def __init__(self, loud, breaks):
        self.loud, self.breaks, self.asked = loud, breaks, 0

    def speak(self, line):
        self.asked += 1
        if self.breaks and line.place == 1:
            raise KeyboardInterrupt
        return self.loud * torch.ones(800)


class Versioned(Own):
    version = "1"


@pytest.mark.parametrize(("kind", "kept"), [(Own, 0), (Versioned, 1)])
def test_lines_of_an_engine_that_may_have_changed_are_spoken_again(tmp_path, kind, kept):
    scene = draft_scene("Ann: One.\nBen: Two.\nAnn: Three.")
    with pytest.raises(KeyboardInterrupt):
        render_scene(scene, tmp_path / "a.wav", engine=kind(0.1, True))
    mended = kind(0.5, False)
    done = render_scene(scene, tmp_path / "a.wav", engine=mended)
    assert mended.asked == 3 - kept
    levels = [done.mix.levelled(place).max().item() for place in range(3)]
    assert levels == pytest.approx([0.1 if kept else 0.5, 0.5, 0.5])
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "version = " + "9" * 5000),
        ("a.json", '{"version": ' + "9" * 5000 + "}"),
        ("a.json", '{"global": ' * 3000),
        ("a.txt", "[instruct]\nglobal.speakers[0].id = " + "[" * 5000),
        ("a.json", '{"global": {"speakers": [{"id": "\\ud800"}]}, "sentences": [{"speaker": "\\ud800", "text": "Yes."}]}'),
    ],
)  # fmt: skip
def test_scripts_that_no_parser_takes_are_one_line(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as refusal:
        read_script(tmp_path / name)
    assert "\n" not in str(refusal.value)
    str(refusal.value).encode()


def test_a_scene_that_cannot_be_spoken_leaves_nothing_behind(tmp_path):
    (tmp_path / "a.json").write_text('{"global": {"speakers": [{"id": "A"}]}, "sentences": [{"speaker": "A", "text": "Yes.", "relation": {"type": "overlap", "seconds": 0}}]}')  # fmt: skip
    with pytest.raises(UserError, match="no sentence stands before the first"):
        read_script(tmp_path / "a.json")
