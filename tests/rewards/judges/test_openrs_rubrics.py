"""Meta-rubrics: the shipped files, the format, lookups in two languages, differences."""

import pytest
from hypothesis import given, strategies as st

from burnish.errors import UserError
from burnish.rewards.judges.openrs import Change, Item, MetaRubric, RubricLibrary
from burnish.rewards.judges.openrs.meta_rubric import TYPES, language_of

SMALL = """---
domain: tea
language: en
names: tea, 茶
---

# Tea

About tea.

## critical
- **Poison**: It is not tea.

## 核心
- **Warm**: It is warm.
"""


def test_every_shipped_rubric_is_there_in_both_languages():
    library = RubricLibrary.shipped()
    assert len(library.domains) == 8
    for domain in library.domains:
        english, chinese = library.rubrics[domain, "en"], library.rubrics[domain, "zh"]
        assert [item.type for item in english.items] == [item.type for item in chinese.items]
        assert language_of(chinese.as_prompt().replace("critical", "")) == "zh"
    general = library.rubrics["general", "en"]
    assert {item.type for item in general.items} == set(TYPES)
    assert sum(item.type == "critical" for item in general.items) == 3


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("writing", "writing"), ("Creative_Writing", "writing"), ("创意写作", "writing"),
        ("mmlu-pro-math", "mathematics"), ("livebench-reasoning", "mathematics"),
        ("mmlu-pro-law", "question_answering"), ("Precise IF", "instruction_following"),
        ("livecodebench", "code"), ("编程", "code"), ("safety-refuse", "safety"), ("knitting", None),
    ],
)  # fmt: skip
def test_domains_are_found_by_english_and_chinese_names(name, domain):
    assert RubricLibrary.shipped().domain_of(name) == domain


def test_a_domain_adds_to_the_general_rubric_in_the_language_of_the_request():
    library = RubricLibrary.shipped()
    english = library.for_request("Write a poem.", "写作")
    assert english.language == "en"
    titles = [item.title for item in english.items]
    assert "Wrong facts" in titles
    assert "Voice" in titles
    chinese = library.for_request("请写一首关于雨的诗", "writing")
    assert "语气" in [item.title for item in chinese.items]
    assert library.for_request("Hello there", "knitting") == library.rubrics["general", "en"]
    assert library.for_request("Hi", language="zh").language == "zh"


def test_a_file_is_read_and_written_back():
    rubric = MetaRubric.parse(SMALL)
    assert rubric.domain == "tea"
    assert rubric.names == ("tea", "茶")
    assert rubric.preface == "About tea."
    assert rubric.items == (
        Item("critical", "Poison", "It is not tea."),
        Item("core", "Warm", "It is warm."),
    )
    assert MetaRubric.parse(rubric.render()) == rubric
    assert rubric.hash != MetaRubric.parse(SMALL.replace("warm.", "hot.")).hash


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda s: s[4:], "r.md:1: expected '---'"),
        (lambda s: s.replace("names", "nams"), "Did you mean 'names'"),
        (lambda s: s.replace("## critical", "## critcal"), "Did you mean 'critical'"),
        (lambda s: s.replace("- **Warm**:", "- Warm:"), r"r.md:15: got '- Warm: It is warm"),
        (lambda s: s.replace("Warm", "poison"), "item 'Poison' .* a title of its own"),
        (lambda s: s.replace(": en", ": fr"), "expected en, zh"),
        (lambda s: "---\ndomain: tea\n", "then '---'"),
    ],
)
def test_a_mistake_is_told_in_one_line(tmp_path, spoil, line):
    file = tmp_path / "r.md"
    file.write_text(spoil(SMALL), encoding="utf-8")
    with pytest.raises(UserError, match=line) as caught:
        MetaRubric.load(file)
    assert "\n" not in str(caught.value)


def test_missing_files_and_clashing_names(tmp_path):
    with pytest.raises(UserError, match="cannot read the rubric"):
        MetaRubric.load(tmp_path / "none.md")
    with pytest.raises(UserError, match="no rubric here"):
        RubricLibrary.load(tmp_path)
    with pytest.raises(UserError, match="names the domains"):
        RubricLibrary([MetaRubric((), "a", names=("x",)), MetaRubric((), "b", names=("x",))])


WORD = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8)
ITEMS = st.lists(
    st.builds(Item, st.sampled_from(TYPES), WORD, WORD),
    max_size=6,
    unique_by=lambda item: item.title.casefold(),
)


@given(ITEMS, ITEMS)
def test_a_difference_leads_from_one_rubric_to_the_other(before, after):
    start, end = MetaRubric(tuple(before)), MetaRubric(tuple(after))
    now = start
    for change in start.diff(end):
        now = now.applied(change)
    assert now.diff(end) == []
    assert sorted(now.items, key=repr) == sorted(end.items, key=repr)
    assert start.diff(start) == []


def test_a_change_that_does_not_fit_says_why():
    rubric = MetaRubric.parse(SMALL)
    warm = rubric.items[1]
    with pytest.raises(ValueError, match="no item 'Cold'"):
        rubric.applied(Change("delete", Item("core", "Cold", "x")))
    with pytest.raises(ValueError, match="title of its own"):
        rubric.applied(Change("add", None, warm))
    with pytest.raises(ValueError, match="each on one line"):
        rubric.applied(Change("add", None, Item("core", "Two", "a\n## critical")))
    assert str(Change("modify", warm, Item("core", "Warm", "hot"))) == (
        "- [core] Warm: It is warm.\n+ [core] Warm: hot"
    )


def test_the_language_of_a_request():
    assert language_of("请用 Python 写一个 sort 函数") == "zh"
    assert language_of("What does 好 mean?") == "en"
    assert language_of("東京の天気を教えてください") == "en"
    assert language_of("123") == "en"
