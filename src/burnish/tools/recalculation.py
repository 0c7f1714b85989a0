"""Compute the formulas of a workbook: with LibreOffice where it is found, else with `formulas`.

    recalculate("out.xlsx")                      # "libreoffice" or "formulas"; one line where neither

Both run in a child process with a deadline and a limit of memory. A formula that names a file, a
server or another program is refused before.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Literal

from burnish.boundary import Seconds, public
from burnish.tools.spreadsheet import (
    Spreadsheet,
    SpreadsheetError,
    expand_range,
    formula_cells,
    formula_of,
    open_workbook,
    reaches_outside,
    read_bytes,
    refuse_bomb,
)
from burnish.tools.supervisor import ChildProcess

MOST_MEMORY = 4 << 30
"""Bytes of address space of the child."""


Engine = Literal["auto", "libreoffice", "formulas"]


@public
def recalculation_engine(engine: Engine = "auto") -> str:
    """`libreoffice` or `formulas`, whichever is there; one line where none is."""
    if engine in ("auto", "libreoffice") and _office():
        return "libreoffice"
    if engine in ("auto", "formulas"):
        from importlib.util import find_spec

        if find_spec("formulas") is not None:
            return "formulas"
    wanted = "LibreOffice and the package formulas" if engine == "auto" else engine
    raise SpreadsheetError(f"no {wanted}. Install it, or: pip install 'burnish[spreadsheet]'")


@public
def recalculate(
    path: str | Path,
    out: str | Path | None = None,
    *,
    engine: Engine = "auto",
    timeout_s: Seconds = 60.0,
) -> str:
    """Compute every formula of a file and store the results; the engine that did it.

    Runs in a child process that is killed after `timeout_s`. `formulas` knows fewer functions than
    LibreOffice and stores values in place of formulas.
    """
    source = Path(path).resolve()
    refuse_bomb(read_bytes(source), str(source))
    chosen = recalculation_engine(engine)
    for cell in formula_cells(open_workbook(source)):
        formula = formula_of(cell.value)
        if reaches_outside(formula):
            place = f"{cell.parent.title}!{cell.coordinate}"
            raise SpreadsheetError(f"{source}: {place} reaches outside ({formula:.60})")
    with tempfile.TemporaryDirectory(prefix="burnish-sheet-") as folder:
        work = Path(folder) / "book.xlsx"
        shutil.copyfile(source, work)
        made = Path(folder) / "out"
        made.mkdir()
        if chosen == "libreoffice":
            command = [
                *("sh", "-c", f'ulimit -v {MOST_MEMORY >> 10}; exec "$0" "$@"', _office()),
                *("--headless", "--norestore", f"-env:UserInstallation=file://{folder}/o"),
                *("--convert-to", "xlsx:Calc MS Excel 2007 XML", "--outdir", str(made), str(work)),
            ]
        else:
            command = [sys.executable, "-c", _FORMULAS, str(work), str(made), str(MOST_MEMORY)]
        log = Path(folder) / "log"
        with log.open("wb") as file:
            # Only what a program needs to start: a formula must not see the rest.
            env = {k: os.environ[k] for k in ("PATH", "LANG", "SYSTEMROOT") if k in os.environ}
            env |= {"HOME": folder, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            child = ChildProcess(command, env=env, stdout=file, stderr=file, cwd=folder)
            try:
                code = child.wait(timeout_s)
            finally:
                child.kill_descendants()
                child.kill()
        files = sorted(made.glob("*.[xX][lL][sS][xX]"))
        if code is None:
            raise SpreadsheetError(f"{source}: not recalculated within {timeout_s:g} s ({chosen})")
        if code != 0 or not files:
            said = " ".join(log.read_text("utf-8", "replace").split())[-200:]
            raise SpreadsheetError(f"{source}: {chosen} could not recalculate it ({said})")
        target = source if out is None else Path(out)
        if chosen == "formulas":
            book, results = Spreadsheet(source), open_workbook(files[0], values=True)
            pages = {sheet.title.casefold(): sheet for sheet in results.worksheets}
            for cell in formula_cells(book.book):
                page = pages.get(cell.parent.title.casefold())  # it writes names in capitals
                # An array formula fills every cell of its range.
                for name in expand_range(getattr(cell.value, "ref", cell.coordinate)):
                    if page is not None:
                        cell.parent[name].value = page[name].value
            book.save(target)
        else:
            staged = target.with_name(f".{target.name}.new")
            shutil.copyfile(files[0], staged)
            os.replace(staged, target)
    return chosen


def _office() -> str:
    return shutil.which("soffice") or shutil.which("libreoffice") or ""


_FORMULAS = """
import sys, resource
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]), int(sys.argv[3])))
import formulas
model = formulas.ExcelModel().loads(sys.argv[1]).finish()
model.calculate()
model.write(dirpath=sys.argv[2])
"""
"""The child that recalculates with the package `formulas`."""
