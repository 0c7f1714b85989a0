"""No chat template runs for ever, fills the memory or ends in a traceback; good ones are as before."""

import json
import shutil
import time

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from burnish.errors import UserError
from burnish.lm import chat_template as template_limits
from burnish.lm.chat_template import ChatTemplate
from burnish.lm.folder import load_model
from burnish.lm.new_model import cached_tiny_model
from burnish.records import Message

TALK = [Message("system", "Be brief."), Message("user", "What is 3 + 4?")]
LOOP = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"

HOSTILE = {
    "loops": (LOOP, "it loops: more than 100,000 steps"),
    "loops and writes": (
        LOOP.replace("{% endfor %}", "x{% endfor %}", 1),
        "it loops: more than 100,000 steps",
    ),
    "recurses": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself without end"),
    "branches": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "it loops: more than 100,000 steps",
    ),
    "loops through itself": (
        "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
        "calls itself without end",
    ),
    "divides by zero": ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
    "writes without end": (
        "{% set s = 'x' * 10 ** 6 %}{% for i in range(1000) %}{{ s }}{% endfor %}",
        "a value grows past 20,000,000 characters",
    ),
    "draws random text": ("{{ lipsum(n=100000, max=100000) }}", "'lipsum' is undefined"),
    "reads what is not there": ("{{ messages[7].content.text }}", "has no element 7"),
    "is not text": ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
}


@pytest.mark.parametrize(("template", "said"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_template_is_one_line(monkeypatch, template, said):
    monkeypatch.setattr(template_limits, "MOST_STEPS", 100_000)
    began = time.process_time()
    with pytest.raises(UserError) as caught:
        ChatTemplate(template, {}).render(TALK)
    assert time.process_time() - began < 10
    line = str(caught.value)
    assert said in line
    assert line.startswith("the chat template ")
    assert "roles [system, user]" in line
    assert "\n" not in line
    assert len(line) < 700


@pytest.mark.parametrize(
    "template", ["{% if %}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% for i in x %}" * 50]
)
def test_a_template_that_cannot_be_compiled_is_one_line(template):
    with pytest.raises(UserError, match="chat template") as caught:
        ChatTemplate(template, {})
    assert "\n" not in str(caught.value)


GOOD = [
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ m.role ~ ': ' ~ m['content'] | trim }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}{{ '!' * 3 }}{{ 7 // 2 }}{{ 2 ** 10 }}",
    "{% for m in messages if m.role == 'user' %}{{ m.content.split('+')[0] | upper }}{% else %}-{% endfor %}",
    "{% for x in messages | selectattr('role', 'eq', 'user') %}{{ loop.first }}{{ x.content | replace('3', '5') }}"
    "{% endfor %}{{ '%05d' % 7 }}{{ '{:>8}'.format('a') }}{{ messages | tojson(indent=2) }}",
    "{{ 'a' ~ 1 ~ None ~ true }}{% for i in range(3) %}{{ loop.cycle('a', 'b') }}{% endfor %}",
]


@pytest.mark.parametrize("template", GOOD)
def test_a_good_template_gives_what_the_plain_sandbox_gives(template):
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    plain.filters["tojson"] = lambda value, indent=None: json.dumps(value, indent=indent)
    shown = [{"role": m.role, "content": m.content} for m in TALK]
    try:
        expected = plain.from_string(template).render(messages=shown)
    except jinja2.TemplateError as error:
        pytest.fail(f"the template is not good: {error}")
    except TypeError:
        with pytest.raises(UserError):
            ChatTemplate(template, {}).render(TALK)
        return
    assert ChatTemplate(template, {}).render(TALK) == expected


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(cached_tiny_model(), tmp_path / "model")


def test_a_config_with_a_byte_order_mark_loads(folder):
    config = folder / "config.json"
    config.write_text("\ufeff" + config.read_text(), encoding="utf-8")
    assert load_model(folder, device="cpu").parameters > 0


@pytest.mark.parametrize(
    "index", ["{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": "x"}', "[" * 10_000]
)
def test_an_index_without_a_map_is_one_line(folder, index):
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError, match=r"index.json.*(weight_map|JSON)"):
        load_model(folder, device="cpu")
