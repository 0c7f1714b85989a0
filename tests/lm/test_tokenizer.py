"""The tokenizer and chat templates, against transformers and by hand."""

import json
import logging
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from burnish.errors import UserError
from burnish.lm.chat_template import ChatTemplate
from burnish.lm.new_model import tiny_model, write_byte_tokenizer
from burnish.lm.tokenizer import REMEMBERED_CHARACTERS, Tokenizer
from burnish.records import Author, Message

CONVERSATIONS = [
    [Message("user", "What is 3 + 4?")],
    [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Hello."),
     Message("user", "And?")],
    [Message("user", "  spaces around  \n\n12 lines\t")],
    [Message("user", "Ünïcode — 数学 🙂 <|im_ |end|> ½")],
    [Message("user", "")],
    [Message("user", "user"), Message("assistant", "assistant\n")],
]  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_render_equals_transformers(tiny, messages, add_generation_prompt):
    from transformers import AutoTokenizer

    logging.getLogger("transformers").setLevel(logging.ERROR)
    theirs = AutoTokenizer.from_pretrained(tiny)
    dicts = [{"role": m.role, "content": m.content} for m in messages]
    expected = theirs.apply_chat_template(
        dicts, add_generation_prompt=add_generation_prompt, return_dict=False
    )
    ours = Tokenizer.from_folder(tiny)
    ids = ours.render(messages, add_generation_prompt=add_generation_prompt)
    assert ids == list(expected)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.decode(ids, skip_special=False) == theirs.decode(ids)


@given(
    st.lists(
        st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.text(max_size=30)),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=60, deadline=None)
def test_spans_joined_are_the_rendering(turns):
    tokenizer = shared_tokenizer()
    messages = [Message(role, content) for role, content in turns]
    spans = tokenizer.render_spans(messages)
    assert [t for span in spans for t in span.token_ids] == tokenizer.render(messages)
    assert all(a.author is not b.author for a, b in pairwise(spans))


_SHARED = []


def shared_tokenizer():
    """One tokenizer for all hypothesis examples; function fixtures cannot serve those."""
    if not _SHARED:
        import tempfile
        from pathlib import Path

        with tempfile.TemporaryDirectory() as folder:
            _SHARED.append(Tokenizer.from_folder(tiny_model(Path(folder))))
    return _SHARED[0]


def test_spans_name_their_authors(tiny):
    tokenizer = Tokenizer.from_folder(tiny)
    messages = [Message("user", "user"), Message("tool", "42"), Message("user", "so?")]
    spans = tokenizer.render_spans(messages)
    shown = [(s.author, tokenizer.decode(s.token_ids, skip_special=False)) for s in spans]
    assert shown == [
        (Author.TEMPLATE, "<|im_start|>user\n"),
        (Author.PROMPT, "user"),
        (Author.TEMPLATE, "<|im_end|>\n<|im_start|>tool\n"),
        (Author.TOOL, "42"),
        (Author.TEMPLATE, "<|im_end|>\n<|im_start|>user\n"),
        (Author.PROMPT, "so?"),
        (Author.TEMPLATE, "<|im_end|>\n<|im_start|>assistant\n"),
    ]


def test_spans_of_a_template_that_rewrites_contents_are_all_the_prompts(tiny, tmp_path):
    write_byte_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content | upper }}!")
    spans = Tokenizer.from_folder(tmp_path).render_spans([Message("user", "hi")])
    assert [(s.author, len(s.token_ids)) for s in spans] == [(Author.PROMPT, 3)]


def test_a_model_without_template_gets_plain_text(tmp_path):
    write_byte_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    tokenizer = Tokenizer.from_folder(tmp_path)
    ids = tokenizer.render([Message("system", "Be brief."), Message("user", "Hi")])
    assert tokenizer.decode(ids) == "Be brief.\n\nHi"
    spans = tokenizer.render_spans([Message("system", "Be brief."), Message("user", "Hi")])
    assert [s.author for s in spans] == [Author.PROMPT, Author.TEMPLATE, Author.PROMPT]


def test_end_tokens_come_from_all_three_files(tmp_path):
    write_byte_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 0]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 0, "pad_token_id": 9}))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.eos_ids == (7, 0, 2)
    assert tokenizer.pad_id == 3  # the tokenizer's own name beats the config's number
    assert tokenizer.vocab_size == 260


def test_special_tokens_written_as_tables_and_templates_in_a_list(tmp_path):
    write_byte_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["eos_token"] = {"content": "<|endoftext|>", "special": True}
    config["chat_template"] = [
        {"name": "tool_use", "template": "no"},
        {"name": "default", "template": "{{ messages[0].content }}{{ eos_token }}"},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.eos_ids == (0,)
    assert tokenizer.render([Message("user", "é")])[-1] == 0


def test_templates_may_use_what_transformers_offers():
    source = (
        "{% for m in messages %}{% if m.role == 'skip' %}{% continue %}{% endif %}\n"
        "{% generation %}{{ m.content | tojson }}{% endgeneration %}{% endfor %}"
        "{{ strftime_now('%Y')[:2] }}"
    )
    text = ChatTemplate(source, {}).render([Message("skip", "x"), Message("user", "<é>")])
    assert text == '"<é>"20'


class Counting(ChatTemplate):
    """A template that counts how often it is asked."""

    asked = 0

    def render(self, messages, *, add_generation_prompt=True):
        self.asked += 1
        return super().render(messages, add_generation_prompt=add_generation_prompt)


def counted(tiny, source):
    tokenizer = Tokenizer.from_folder(tiny)
    tokenizer.template = Counting(source, {})
    return tokenizer


PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"


def test_a_conversation_is_rendered_once_and_its_frame_is_shared(tiny):
    tokenizer = counted(tiny, PLAIN)
    one, other = [Message("user", "one")], [Message("user", "other")]
    ids, spans = tokenizer.render(one), tokenizer.render_spans(one)
    assert tokenizer.template.asked == 2, "the text, and where the content stands in it"
    assert tokenizer.render_spans(tuple(one)) is spans
    assert tokenizer.render_spans(other)[-1].token_ids == tuple(tokenizer.encode("other"))
    assert tokenizer.template.asked == 3
    ids.append(0)
    assert tokenizer.render(one) == ids[:-1], "a caller's list is its own"
    with_prompt = tokenizer.render(one, add_generation_prompt=False)
    assert (with_prompt, tokenizer.template.asked) == (ids[:-1], 5)


def test_conversations_that_differ_in_any_field_are_told_apart(tiny):
    tokenizer = counted(tiny, "{% for m in messages %}{{ m | tojson }}{% endfor %}")
    variants = [
        Message("user", "x"),
        Message("tool", "x"),
        Message("user", "x", name="Ada"),
        Message("user", "x", tool_calls=({"name": "f"},)),
        Message("user", "x", tool_calls=({"name": "g"},)),
    ]
    texts = [tokenizer.decode(tokenizer.render([m])) for m in variants for _ in range(2)]
    assert len(set(texts)) == len(variants)
    assert texts == [tokenizer.render_text([m]) for m in variants for _ in range(2)]


@pytest.mark.parametrize(
    ("source", "content"),
    [
        (PLAIN + "{{ strftime_now('%Y') }}", "short"),
        (PLAIN + "{{ [1, 2] | random }}", "short"),
        (PLAIN, "a" * (REMEMBERED_CHARACTERS + 1)),
    ],
)
def test_what_may_change_or_is_long_is_rendered_each_time(tiny, source, content):
    tokenizer = counted(tiny, source)
    tokenizer.render([Message("user", content)])
    first = tokenizer.template.asked
    tokenizer.render([Message("user", content)])
    assert tokenizer.template.asked > first


def test_a_folder_without_tokenizer_or_with_a_broken_one(tmp_path):
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="is not a tokenizer"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(UserError, match="not valid JSON"):
        Tokenizer.from_folder(tmp_path)
