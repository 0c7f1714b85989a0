"""Which tokens are syntax, and which are an answer's template."""

import pytest

from burnish.errors import ArgumentError
from burnish.models.masked_diffusion import is_syntax, syntax_eligible, template_tokens

SYNTAX = {
    "html": ["<td", ">", "</", "tr", "<table>", "Ġrowspan", '="'],
    "markdown": ["|", "---", "##", "Ċ", "```", "**", ":---:"],
    "json": ["{", '":', "Ġ[", "null", "},", '"'],
    "python": ["def", "Ġreturn", "():", "ĊĠĠĠĠ", "ĠĠĠ", "==", "▁if"],
}
CONTENT = {
    "html": ["Paris", "42", "Ġname", ">Name", "Ċ"],
    "markdown": ["Total", "Ġ12", "Ġ"],
    "json": ["name", "Ġ3", "Ċ"],
    "python": ["total", "Ġ7", "Ġ"],
}


@pytest.mark.parametrize("format", SYNTAX)
def test_tokens_of_a_format(format):
    assert all(syntax_eligible(SYNTAX[format], format)), SYNTAX[format]
    assert not any(syntax_eligible(CONTENT[format], format)), CONTENT[format]


def test_an_unknown_format_is_refused_and_an_empty_token_is_no_syntax():
    assert not is_syntax("", "python")
    with pytest.raises(ArgumentError, match="format: got 'xml', expected html"):
        is_syntax("<", "xml")


def test_template_tokens_are_those_of_nearly_all_answers():
    answers = [[1, 7, 7, 9], [2, 9, 7], [3, 9]]
    assert template_tokens(answers) == [9]
    assert template_tokens(answers, share=0.6) == [7, 9]
