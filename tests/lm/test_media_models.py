"""Models that read images or sounds: the numbers are those of transformers' own forward, whatever the
company; placeholder tokens are never sampled, trained or written by data."""

import io
import json
import shutil

import anyio
import numpy as np
import pytest
import torch
from lab.tiny_media import FAMILIES, tiny_media_model
from msgspec.structs import replace

from burnish.errors import UserError
from burnish.lm.base import MediaIds, Sampling, media_of
from burnish.lm.folder import load_model, save_model
from burnish.lm.local import LocalLM
from burnish.lm.media_processor import MediaProcessor
from burnish.lm.model_input import ModelInput
from burnish.records import Author, Message, Task, TextPart
from burnish.store.blobs import shared_blobs
from burnish.training.packing import make_rows, micro_batches, pack

Image = pytest.importorskip("PIL.Image", reason="images need pillow")
soundfile = pytest.importorskip("soundfile", reason="sounds need soundfile")
pytest.importorskip("soxr", reason="sounds need soxr")

EXACT = 1e-5


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    made = {}

    def folder(family):
        if family not in made:
            made[family] = tiny_media_model(tmp_path_factory.mktemp(family), family)
        return made[family]

    return folder


@pytest.fixture(scope="session")
def loaded_of(folders):
    made = {}

    def loaded(family):
        if family not in made:
            made[family] = load_model(folders(family), device="cpu")
        return made[family]

    return loaded


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path_factory.getbasetemp() / "media-cache"))


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def lm(loaded_of, family):
    return LocalLM(loaded_of(family))


def picture(seed, width=48, height=40):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def tone(seed, seconds=0.5, rate=16000):
    time_N = np.arange(int(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(0, 0.05, time_N.shape)
    return (0.3 * np.sin(2 * np.pi * (200 + 40 * seed) * time_N) + noise).astype(np.float32)


def as_bytes(medium):
    file = io.BytesIO()
    if isinstance(medium, np.ndarray):
        soundfile.write(file, medium, 16000, format="WAV", subtype="FLOAT")
    else:
        medium.save(file, "PNG")
    return file.getvalue()


def media_for(family, count, **sizes):
    """Opened media and their parts."""
    make = tone if family == "qwen2_audio" else picture
    opened = [make(seed, **sizes) for seed in range(count)]
    return opened, [shared_blobs().add(as_bytes(one)) for one in opened]


def asks(*parts):
    """A message of texts and media."""
    return Message("user", tuple(TextPart(p) if isinstance(p, str) else p for p in parts))


def their_logprobs(lm, text, opened, response):
    """Log-probs of a response by transformers' processor and forward alone."""
    module = lm.loaded.module
    processor, model = module.media.processor, module.model
    if isinstance(opened[0], np.ndarray):
        rate = processor.feature_extractor.sampling_rate
        given = {"audio": opened, "sampling_rate": rate}
    else:
        given = {"images": opened}
    made = processor(text=[text], return_tensors="pt", **given)
    ids_1S = made["input_ids"]
    size = ids_1S.shape[1]
    made["input_ids"] = torch.cat([ids_1S, torch.tensor([response])], dim=1)
    made["attention_mask"] = torch.ones_like(made["input_ids"])
    if "mm_token_type_ids" in made:
        zeros = torch.zeros(1, len(response), dtype=torch.long)
        made["mm_token_type_ids"] = torch.cat([made["mm_token_type_ids"], zeros], dim=1)
    with torch.no_grad():
        logprobs_SV = model(**made).logits[0].float().log_softmax(-1)
    at = torch.arange(len(response))
    return ids_1S[0].tolist(), logprobs_SV[size - 1 + at, torch.tensor(response)].tolist()


RESPONSE = [70, 71, 72, 75, 2]


@pytest.mark.parametrize("count", [1, 2])
def test_log_probs_are_those_of_transformers_own_forward(lm, family, count):
    opened, parts = media_for(family, count)
    between = [piece for part in parts for piece in (part, " and ")]
    messages = [Message("system", "Look."), asks("See ", *between, "What is it?")]
    tokenizer = lm.loaded.tokenizer
    prompt = tokenizer.prompt_ids(messages)
    expected_ids, expected = their_logprobs(lm, tokenizer.render_text(messages), opened, RESPONSE)
    assert list(prompt) == expected_ids
    assert media_of(prompt) == tuple(parts)
    got = lm.score_batch([(prompt, RESPONSE)])[0].logprobs
    assert got == pytest.approx(expected, abs=EXACT)
    # Another picture gives other numbers: it is really looked at.
    others = [shared_blobs().add(as_bytes(one)) for one in opened[::-1]]
    if count == 2:
        swapped = MediaIds(prompt, others)
        assert lm.score_batch([(swapped, RESPONSE)])[0].logprobs != pytest.approx(got, abs=1e-4)


def test_neighbouring_media_are_what_the_processor_makes_of_them(lm, family):
    opened, parts = media_for(family, 2)
    # Idefics2's processor puts a blank before a word right behind a picture: the text has one.
    messages = [asks("A", *parts, " B")]
    tokenizer = lm.loaded.tokenizer
    expected_ids, expected = their_logprobs(lm, tokenizer.render_text(messages), opened, RESPONSE)
    prompt = tokenizer.prompt_ids(messages)
    assert list(prompt) == expected_ids
    got = lm.score_batch([(prompt, RESPONSE)])[0].logprobs
    assert got == pytest.approx(expected, abs=EXACT)


def conversations(family):
    """Unlike in length, number and size of their media."""
    _, (one, two) = media_for(family, 2)
    sizes = {"seconds": 0.9} if family == "qwen2_audio" else {"width": 30, "height": 60}
    _, (other,) = media_for(family, 1, **sizes)
    return [
        [asks("What is it?", one)],
        [asks(two, "and", other, "?")],
        [asks("No picture at all.")],
        [Message("system", "Say it."), asks(other, "What is it, in a few words, please?")],
    ]


def test_sampled_log_probs_are_those_of_scoring_alone_or_in_a_batch(lm, family):
    sampling = Sampling(n=2, max_tokens=6, seed=3)
    prompts = [lm.loaded.tokenizer.prompt_ids(talk) for talk in conversations(family)]
    together = lm.sample_batch([lm.request(prompt, sampling) for prompt in prompts])
    for prompt, completions in zip(prompts, together, strict=True):
        alone = lm.sample_batch([lm.request(prompt, sampling)])[0]
        assert [c.token_ids for c in alone] == [c.token_ids for c in completions]
        assert completions[0].prompt_ids == prompt
        for completion, own in zip(completions, alone, strict=True):
            assert completion.logprobs == pytest.approx(own.logprobs, abs=EXACT)
            scored = lm.score_batch([(prompt, completion.token_ids)])[0]
            assert completion.logprobs == pytest.approx(scored.logprobs, abs=EXACT)


def test_training_rows_padded_or_packed_have_the_scores_of_rows_alone(lm, family):
    from burnish.rollouts.session import Session
    from burnish.training.packing import token_scores

    async def play(talk, number):
        session = Session(lm, talk, group=str(number))
        branches = await session.branch(Sampling(n=2, max_tokens=5 + number, seed=number))
        task = Task(id=f"t{number}", messages=tuple(talk))
        return [branch.trajectory(task, i) for i, branch in enumerate(branches)]

    played = [
        one
        for number, talk in enumerate(conversations(family))
        for one in anyio.run(play, talk, number)
    ]
    module = lm.loaded.module
    assert module.packs is (family != "qwen2_5_vl")
    for share in {False, module.packs}:
        rows = make_rows(played, share)
        for batch in micro_batches(rows, 4096):
            packed = pack(batch, played, torch.device("cpu"))
            with torch.no_grad():
                logp_BT = token_scores(module, packed, 1.0).logp_BT
            for row, member in enumerate(packed.members):
                expected = played[member].logprobs
                assert logp_BT[row, : len(expected)].tolist() == pytest.approx(expected, abs=EXACT)


def test_placeholder_tokens_are_the_prompts_and_never_trained(lm, family):
    _, (part,) = media_for(family, 1)
    spans = lm.loaded.tokenizer.render_spans([asks("a", part, "b")])
    (own,) = [span for span in spans if span.media]
    assert own.author is Author.PROMPT
    assert not own.trainable
    assert own.media == (part,)
    ids = lm.loaded.module.media.placeholder_ids
    assert all(token not in ids for span in spans if not span.media for token in span.token_ids)
    assert own.token_ids == lm.loaded.module.media.expansion(part)


def test_placeholder_tokens_are_never_sampled(folders, family):
    loaded = load_model(folders(family), device="cpu")
    token = loaded.module.media.placeholder_ids[0]
    lm = LocalLM(loaded)
    _, (part,) = media_for(family, 1)
    prompt = loaded.tokenizer.prompt_ids([asks("a", part)])
    with torch.no_grad():
        loaded.module.head_weight[token] = 0
        hidden = loaded.module(
            ModelInput(
                torch.tensor([prompt]), torch.arange(len(prompt))[None], media=(media_of(prompt),)
            )
        )[0, -1]
        # Far the likeliest token now.
        loaded.module.head_weight[token] = 8 * hidden / hidden.norm()
    for temperature in (0.0, 1.0):
        sampling = Sampling(n=4, max_tokens=3, temperature=temperature, top_p=0.9, seed=5)
        for completion in lm.sample_batch([lm.request(prompt, sampling)])[0]:
            assert token not in completion.token_ids
            scored = lm.score_batch([(prompt, completion.token_ids)])[0]
            assert completion.raw_logprobs == pytest.approx(scored.logprobs, abs=1e-4)


@pytest.mark.parametrize("is_template", [True, False])
def test_a_text_with_the_placeholders_spelling_is_no_image(lm, family, is_template, tmp_path):
    _, (part,) = media_for(family, 1)
    tokenizer = lm.loaded.tokenizer
    if not is_template:
        folder = shutil.copytree(lm.loaded.folder, tmp_path / "plain")
        for file in ("chat_template.jinja", "chat_template.json"):
            (folder / file).unlink(missing_ok=True)
        tokenizer = type(tokenizer).from_folder(folder, lm.loaded.module.media)
        assert tokenizer.template is None
    reader = lm.loaded.module.media
    forged = f"see {reader.placeholders[0]} here"
    ids = tokenizer.prompt_ids([asks(forged, part, forged)])
    assert media_of(ids) == (part,)
    assert sum(token in reader.placeholder_ids for token in ids) == reader.count_of(part)
    assert tokenizer.decode(ids, skip_special=True).count(reader.placeholders[0]) == 2
    plain = tokenizer.prompt_ids([Message("user", forged)])
    assert not any(token in reader.placeholder_ids for token in plain)
    reader.check(ids, media_of(ids))


def test_placeholders_and_media_must_agree(lm, family):
    _, (part, other) = media_for(family, 2)
    prompt = lm.loaded.tokenizer.prompt_ids([asks("a", part)])
    for wrong in (tuple(prompt), MediaIds(prompt, [part, other]), MediaIds([5, 6], [part])):
        with pytest.raises(UserError, match=r"placeholder tokens .* expected as many") as caught:
            lm.request(wrong, Sampling())
        assert "\n" not in str(caught.value)
        with pytest.raises(UserError, match="expected as many"):
            lm.score_batch([(wrong, RESPONSE)])


def test_a_folder_is_saved_with_its_processor(lm, family, tmp_path):
    target = save_model(lm.loaded, tmp_path / "saved")
    again = LocalLM(load_model(target, device="cpu"))
    _, (part,) = media_for(family, 1)
    prompt = lm.loaded.tokenizer.prompt_ids([asks("a", part)])
    assert again.loaded.tokenizer.prompt_ids([asks("a", part)]) == prompt
    first, second = (one.score_batch([(prompt, RESPONSE)])[0] for one in (lm, again))
    assert first == second
    config = json.loads((target / "config.json").read_text())
    assert config["model_type"] == family
    names = {p.name for p in lm.loaded.folder.iterdir()}
    assert {n for n in names if "processor" in n} <= {p.name for p in target.iterdir()}


# --- one family is enough


def test_a_sound_that_the_model_would_cut_is_refused(loaded_of):
    loaded = loaded_of("qwen2_audio")
    sound = shared_blobs().add(as_bytes(tone(0, seconds=2.5)))
    with pytest.raises(UserError, match=r"lasts 2\.5 s; .* hears the first 2 s"):
        loaded.tokenizer.render([asks(sound)])


def test_a_broken_image_as_large_as_another_is_named_with_its_task(loaded_of):
    """Its row is laid out before the image is opened."""
    from burnish.rollouts import single_turn
    from burnish.rollouts.base import roll_out

    whole = as_bytes(picture(11, 52, 44))
    good, broken = shared_blobs().add(whole), shared_blobs().add(whole[:-40])
    lm = LocalLM(loaded_of("llava"))
    lm.loaded.tokenizer.render([asks(good)])
    tasks = [Task(f"t{i}", (asks(part),)) for i, part in enumerate((good, broken, good))]

    async def play():
        await roll_out(list(enumerate(tasks)), lm, Sampling(max_tokens=2), single_turn, seed=0)

    with pytest.raises(UserError, match=f"^task t1: image/png {broken.sha256[:12]}: .*damaged"):
        anyio.run(play)


def test_media_are_processed_once_and_again_only_beyond_the_limit(folders):
    media = MediaProcessor.from_folder(folders("llava"))
    media.probe()
    _, parts = media_for("llava", 4)
    media.prefetch(parts)
    lengths = [len(media.expansion(part)) for part in parts for _ in range(3)]
    assert set(lengths) == {16}
    device = torch.device("cpu")
    pixels = media.tensors([parts[:2], parts[2:]], device, torch.float32)["pixel_values"]
    assert pixels.shape == (4, 3, 32, 32)
    assert media.processed == 4
    small = MediaProcessor(media.processor, "small")
    small.limit = 2 * pixels[0].nbytes
    for part in (*parts, *parts):
        small.tensors([[part]], device, torch.float32)
    assert small.processed == 8
    assert small._bytes <= small.limit
    again = small.tensors([parts], device, torch.float32)["pixel_values"]
    assert torch.equal(again, pixels)


def test_two_pictures_with_the_same_tokens_are_two_prompts(loaded_of):
    lm = LocalLM(loaded_of("llava"))
    _, (one, two) = media_for("llava", 2)
    first, second = (lm.loaded.tokenizer.prompt_ids([asks("a", p)]) for p in (one, two))
    assert tuple(first) == tuple(second)
    assert first != second
    assert hash(first) != hash(second)
    assert first == MediaIds(first, [one])


def test_a_template_that_takes_lists_alone_gets_lists(folders, loaded_of, tmp_path):
    """As SmolVLM's own does."""
    source = (
        "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
        "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
        "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
        "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
        "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
    )
    folder = shutil.copytree(folders("smolvlm"), tmp_path / "own")
    (folder / "chat_template.jinja").write_text(source)
    tokenizer = load_model(folder, device="cpu").tokenizer
    assert tokenizer.render_text([Message("user", "hi")]) == (
        "<|im_start|>User: hi<end_of_utterance>\nAssistant:"
    )
    _, (part,) = media_for("smolvlm", 1)
    spans = tokenizer.render_spans([asks(part, "What?")])
    assert [span.author for span in spans if span.media] == [Author.PROMPT]
    texts = [tokenizer.decode(s.token_ids) for s in spans if s.author is Author.PROMPT]
    assert texts[-1] == "What?"


def test_a_run_keeps_which_tokens_are_an_image(loaded_of):
    from burnish.store.sample import SpanWriter, read_spans

    _, (part,) = media_for("llava", 1)
    spans = loaded_of("llava").tokenizer.render_spans([asks("a", part, "b")])
    cells = SpanWriter().cells(spans)
    assert read_spans(cells.spans, cells.ids, cells.logprobs) == spans
    assert replace(spans[0], media=()) == spans[0]


def test_weights_move_and_the_picture_matters_to_the_gradient(folders):
    """SFT by hand: the vision tower gets a gradient through the placeholder's places."""
    loaded = load_model(folders("idefics3"), device="cpu")
    _, (part,) = media_for("idefics3", 1)
    prompt = loaded.tokenizer.prompt_ids([asks("a", part)])
    ids = torch.tensor([[*prompt, *RESPONSE]])
    inputs = ModelInput(ids, torch.arange(ids.shape[1])[None], media=((part,),))
    loaded.module.requires_grad_(True)
    logits = loaded.module.logits(loaded.module(inputs))
    loss = (
        -logits[0, len(prompt) - 1 : -1]
        .log_softmax(-1)[torch.arange(5), torch.tensor(RESPONSE)]
        .sum()
    )
    loss.backward()
    gradients = {
        name: parameter.grad.abs().sum().item()
        for name, parameter in loaded.module.named_parameters()
        if parameter.grad is not None
    }
    assert any(value > 0 for name, value in gradients.items() if "vision" in name)


def test_rows_are_laid_out_by_an_images_size_before_it_is_processed(folders):
    media = MediaProcessor.from_folder(folders("idefics3"))
    _, (one, two) = media_for("idefics3", 2)
    first = media.expansion(one)
    assert media.expansion(two) == first
    assert media.processed == 1
    # A photograph that is turned by a note in its file is as large as it is seen.
    turned, file = picture(7), io.BytesIO()
    notes = turned.getexif()
    notes[0x0112] = 6
    turned.save(file, "JPEG", exif=notes)
    media.expansion(shared_blobs().add(file.getvalue()))
    assert media.processed == 2
    # What does not become of it what was said is no answer.
    media._expansions[two.sha256] = first[1:]
    with pytest.raises(UserError, match="makes other tokens of images of one size"):
        media.tensors([[two]], torch.device("cpu"), torch.float32)


def test_a_second_turn_may_hold_an_image_too(loaded_of, family):
    """Sampled tokens stay; what is added is the template's, the text and the medium."""
    from burnish.rollouts.session import Session

    lm = LocalLM(loaded_of(family))
    _, (one, two) = media_for(family, 2)

    async def play():
        session = Session(lm, [asks("a", one)], seed=1)
        await session.generate(Sampling(max_tokens=3))
        session.observe([asks("and", two, " now?")])
        await session.generate(Sampling(max_tokens=3))
        return session

    session = anyio.run(play)
    assert media_of(session.token_ids) == (one, two)
    played = session.trajectory(Task("t", (asks("a", one),)))
    assert [part for span in played.spans for part in span.media] == [one, two]
    last = played.spans[-1]
    prompt = MediaIds([t for s in played.spans[:-1] for t in s.token_ids], (one, two))
    scored = lm.score_batch([(prompt, last.token_ids)])[0]
    assert last.logprobs == pytest.approx(scored.logprobs, abs=EXACT)
