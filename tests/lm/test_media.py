"""Images and sounds in messages: over HTTP with their bytes, refused in one line by text models."""

import base64

import anyio
import msgspec
import pytest
from hostile_server import HostileServer, ok

from burnish.errors import UserError
from burnish.lm import LocalLM, MediaIds, Sampling, load_model, tiny_model
from burnish.lm.http import OpenAILM
from burnish.lm.replay import ScriptedLM
from burnish.lm.wire import read_content
from burnish.records import Message, TextPart
from burnish.store.blobs import Blobs, shared_blobs
from burnish.tasks.mapping import Columns, RowError

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
REAL_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"
)
OGG = b"OggS" + bytes(40)


@pytest.fixture
def blobs(tmp_path):
    return Blobs(tmp_path / "blobs")


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return LocalLM(load_model(tiny_model(tmp_path_factory.mktemp("tiny")), device="cpu"))


def asked(server: HostileServer, message: Message, blobs: Blobs) -> list[str]:
    async def main() -> list[str]:
        async with OpenAILM(server.url, "m", blobs=blobs) as lm:
            return [c.text for c in await lm.sample([message], Sampling())]

    return anyio.run(main)


def test_a_server_gets_the_bytes(blobs):
    message = Message("user", (TextPart("What?"), blobs.add(PNG), blobs.add(OGG)))
    with HostileServer([ok("a cat")]) as server:
        assert asked(server, message, blobs) == ["a cat"]
    (sent,) = server.requests[0].body["messages"]
    image = base64.b64encode(PNG).decode()
    assert sent["content"] == [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
        {
            "type": "input_audio",
            "input_audio": {"data": base64.b64encode(OGG).decode(), "format": "ogg"},
        },
    ]
    assert read_content(sent["content"], blobs) == message.content


def test_an_uncounted_request_with_media_costs_its_estimate(blobs):
    from burnish.lm.http import MEDIA_TOKENS, _prompt_tokens
    from burnish.lm.wire import request_body

    def tokens(message: Message) -> int:
        body = request_body(
            "m", [message], Sampling(), logprobs=False, token_ids=False, blobs=blobs
        )
        return _prompt_tokens(body)

    plain = tokens(Message("user", "What?"))
    assert tokens(Message("user", (TextPart("What?"), blobs.add(PNG)))) == plain + MEDIA_TOKENS


def test_a_data_file_may_hold_media(tmp_path, monkeypatch):
    pytest.importorskip("PIL", reason="pillow is not installed")
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))
    url = f"data:image/png;base64,{base64.b64encode(REAL_PNG).decode()}"
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}]
    columns = Columns(messages="turns")
    draft = columns.draft({"turns": [{"role": "user", "content": parts}]})
    image = shared_blobs().add(REAL_PNG)
    assert draft.messages == (Message("user", (TextPart("What?"), image)),)
    assert shared_blobs().read(image) == REAL_PNG
    stored = [{"role": "user", "content": msgspec.to_builtins([TextPart("What?"), image])}]
    assert columns.draft({"turns": stored}).messages == draft.messages
    away = [{"type": "image_url", "image_url": {"url": "http://example.org/x.png"}}]
    with pytest.raises(RowError, match="'turns': the content of a message"):
        columns.draft({"turns": [{"role": "user", "content": away}]})


@pytest.mark.parametrize("text", ["What is this?", "<|im_end|>"])
def test_a_text_model_refuses_media_in_one_line(local, blobs, text):
    """Also beside a text that is read in another way because it holds a control token."""
    messages = [Message("system", "hi"), Message("user", (TextPart(text), blobs.add(PNG)))]
    line = r"message 1 \(user\) holds an image, and this model reads text only"
    for call in (
        lambda: anyio.run(local.sample, messages, Sampling()),
        lambda: local.loaded.tokenizer.render_spans(messages),
        lambda: local.loaded.tokenizer.behind(messages, "answer"),
    ):
        with pytest.raises(UserError, match=line) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_script_reads_the_mark_of_an_image(blobs):
    image = blobs.add(PNG)
    lm = ScriptedLM({f"What is [image {image.sha256[:12]}]?": "a cat"})
    message = Message("user", (TextPart("What is "), image, TextPart("?")))
    assert anyio.run(lm.sample, [message], Sampling())[0].text == "a cat"


def test_a_server_is_not_sent_ids_without_their_media(blobs):
    prompt = MediaIds([5, 6], [blobs.add(PNG)])

    async def main(score: bool) -> None:
        async with OpenAILM("http://127.0.0.1:9/v1", "m", blobs=blobs) as lm:
            await (lm.score(prompt, [7]) if score else lm.sample(prompt, Sampling()))

    for score in (True, False):
        with pytest.raises(UserError, match="which no server is sent with ids"):
            anyio.run(main, score)
