"""What a search for a prompt came to, as Markdown: the diff, every candidate's score, the cost."""

from __future__ import annotations

import difflib

from burnish.agents.prompt.optimise import PromptResult
from burnish.agents.prompt.paired import Paired
from burnish.arguments import as_text, refused


def prompt_diff(before: str, after: str) -> str:
    """The unified diff of two prompts.

    >>> print(prompt_diff("Be brief.", "Be brief.\\nBe right."))
    --- present
    +++ proposed
    @@ -1 +1,2 @@
     Be brief.
    +Be right.
    """
    as_text("before", before)
    as_text("after", after)
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "present", "proposed", lineterm=""
    )
    return "\n".join(lines)


def verdict_line(result: PromptResult) -> str:
    """The outcome in one line."""
    _check_result(result)
    tries = len(result.tried)
    if not tries:
        why = f" ({result.problems[0]})" if result.problems else ""
        return f"The proposer gave no candidate{why}; the prompt stays. Try another proposer."
    if result.best == result.start:
        return f"No candidate of {tries} was better at the corrected level; the prompt stays."
    found = result.confirmation
    shown = _paired(found) if found is not None else "nothing could be scored"
    if result.is_confirmed:
        return f"A better prompt, confirmed on held-out tasks: {shown}."
    return f"A candidate won the trials and was not confirmed on held-out tasks ({shown}); the prompt stays."


def prompt_report(result: PromptResult) -> str:
    """The whole report, as Markdown."""
    _check_result(result)
    settings, (shown, trial, confirm) = result.settings, result.sizes
    spent = result.spending
    cost = f", {spent.usd:.4f} USD" if spent.usd else ""
    lines = [
        "# Prompt optimisation",
        "",
        verdict_line(result),
        "",
        f"Model `{result.model}`, proposals by {result.proposer}. {shown} tasks shown to the "
        f"proposer, {trial} for trials, {confirm} to confirm. {settings.rounds} rounds of "
        f"{settings.candidates}; a try passes at p <= {settings.level:.2g} (alpha {settings.alpha:g} "
        f"over {settings.rounds * settings.candidates} tries).",
        f"{spent.answers} answers, {spent.tokens} tokens written{cost}.",
        "",
        "## Diff",
        "",
        "```diff",
        prompt_diff(result.start, result.best) or "(none)",
        "```",
        "",
        "## Candidates",
        "",
        "| round | from | score | change | p | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for one in result.tried:
        paired = one.paired
        cells = ["", "", ""]
        if paired is not None:
            change = paired.difference
            cells = [
                f"{paired.after:.3f}",
                f"{change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}]",
                f"{paired.p:.3g}",
            ]
        row = [str(one.round), one.candidate.origin, *cells, one.verdict]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    for number, one in enumerate(result.tried, start=1):
        lines += ["", f"### {number}: {one.candidate.origin}", "", *_quoted(one.candidate.prompt)]
    if result.problems:
        lines += ["", "## Problems", "", *(f"- {line}" for line in result.problems)]
    return "\n".join(lines) + "\n"


def _check_result(result: object) -> None:
    if not isinstance(result, PromptResult):
        raise refused("result", result, "what optimise or burnish.optimise_prompt gave")


def _quoted(text: str) -> list[str]:
    """Indented, so that nothing in it is read as Markdown."""
    return [f"    {line}" for line in text.splitlines()]


def _paired(found: Paired) -> str:
    change = found.difference
    return (
        f"{found.before:.3f} to {found.after:.3f}, {change.value:+.3f} "
        f"[{change.low:+.3f}, {change.high:+.3f}], p {found.p:.2g}"
    )
