"""Paste this into the sandbox, then call code_of(responses["A"])."""

import re


def code_of(text: str) -> str:
    """The longest fenced block of a response, or all of it where there is no fence."""
    blocks = re.findall(r"```[A-Za-z0-9_+-]*[ \t]*\n(.*?)```", text, flags=re.DOTALL)
    return max(blocks, key=len) if blocks else text
