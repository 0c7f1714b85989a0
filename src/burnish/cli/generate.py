"""`burnish generate`: sample a model; the command around `burnish.generate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
from typer import Argument, Option

from burnish.cli.console import emit_json, err, say
from burnish.cli.shared_options import (
    ApiKeyEnv,
    Attached,
    DecodingWords,
    MaxTokens,
    ModelName,
    Seed,
    System,
    Temperature,
    TopP,
    read_attached,
)
from burnish.errors import UserError
from burnish.records import MediaPart, Message, TextPart
from burnish.texts import counted, read_text


def generate(
    model: ModelName,
    prompts: Annotated[
        list[str] | None, Argument(metavar="PROMPT ...", help="One or more texts.")
    ] = None,
    file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Prompts: rows with prompt or messages (JSONL, JSON, CSV, Parquet), or a .txt with "
            "one a line; - for lines of the standard input.",
        ),
    ] = None,
    n: Annotated[int, Option(min=1, help="Answers to each prompt.")] = 1,
    attach: Attached = None,
    system: System = "",
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    max_tokens: MaxTokens = 256,
    seed: Seed = 0,
    api_key_env: ApiKeyEnv = "",
    decoding: DecodingWords = "",
    raw: Annotated[
        bool | None,
        Option(
            "--raw/--chat",
            help="Continue texts as they stand, without the chat template; by default where a run was "
            "only pre-trained.",
        ),
    ] = None,
    out: Annotated[
        Path | None, Option(metavar="FILE", help="Write a new file instead of printing.")
    ] = None,
) -> int:
    """Sample a model: prompts in, JSON lines out.

    \b
      burnish generate smollm2 "What is a kite?"
      burnish generate runs/NAME --file questions.jsonl --n 4 --temperature 1 --seed 7
      burnish generate my-vlm "What is this?" --attach photo.png
      burnish generate runs/NAME --raw "Once there was a" --temperature 0.8
      burnish generate http://localhost:8000/v1#my-model --file - < prompts.txt
    """
    from burnish.api.measure import generate as sample
    from burnish.api.models import continues_text, open_model

    if out is not None:
        if out.exists():
            raise UserError(f"{out} exists already; expected the name of a new file for --out")
        out.parent.mkdir(parents=True, exist_ok=True)
    asked = [*(prompts or []), *(_read(file) if file else [])]
    if not asked:
        raise UserError("no prompts; expected texts behind the model, or --file FILE")
    if attached := read_attached(attach):
        asked = [_with_media(prompt, attached) for prompt in asked]
    is_raw = continues_text(model) and not system if raw is None else raw
    lm = open_model(model, api_key_env, decoding)
    with err.status(f"sampling {counted(len(asked) * n, 'answer')} ..."):
        found = sample(
            lm,
            asked,
            n=n,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            system=system,
            top_p=top_p,
            raw=is_raw,
        )
    rows = [{**row, "index": place % n} for place, row in enumerate(found.rows())]
    if out is None:
        for row in rows:
            emit_json(row)
        return 0
    write_rows(out, rows)
    say(f"{counted(len(rows), 'answer')} of {found.model}: {out}")
    return 0


def _with_media(prompt: Any, parts: tuple[MediaPart, ...]) -> Any:
    if not isinstance(prompt, str):
        raise UserError(
            "--attach: got a prompt of chat messages, expected texts. Write the media into the "
            "messages, as parts of their content"
        )
    return [Message("user", (*parts, TextPart(prompt)))]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write JSON lines in one go: the file is there whole or as it was."""
    from burnish.store.durable import write_file

    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def _read(file: Path) -> list[Any]:
    if str(file) == "-" or file.suffix == ".txt":
        text = sys.stdin.read() if str(file) == "-" else read_text(file)
        return [line for line in text.splitlines() if line.strip()]
    from burnish.tasks.rows import BadRow, read_table

    found: list[Any] = []
    for place, row in enumerate(read_table(file).rows, 1):
        values = {} if isinstance(row, BadRow) else row.values
        prompt = values.get("messages") or values.get("prompt")
        if not prompt:
            raise UserError(
                f"{file}: row {place} has neither 'prompt' nor 'messages'; expected one of them"
            )
        found.append(prompt)
    return found
