"""An environment in which an agent works on a spreadsheet, and is paid by SpreadsheetBench's rule.

A task's fields are those of SpreadsheetBench: `workbook` and `gold` (paths, or the files' bytes),
`answer_position`, `answer_sheet`. The reward `env` reads `passed`: 1 or 0; a task that cannot be
scored, or whose formulas cannot be computed, fails the rollout instead of giving a number
(`rule = "reference"` reads such formulas as empty).
"""

from __future__ import annotations

import datetime
import io
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Literal

from burnish.agents.trace2skill.skill_env import SkillEnv
from burnish.arguments import as_number
from burnish.errors import RolloutError, UserError
from burnish.records import Message, Task
from burnish.rollouts import Observation, Tool
from burnish.rollouts.tool import in_thread
from burnish.tools.recalculation import recalculate
from burnish.tools.spreadsheet import (
    Comparison,
    Spreadsheet,
    SpreadsheetError,
    compare_workbooks,
    formula_cells,
)

MOST_SHOWN = 400
"""Cells that one call shows."""


class WorkbookEnv(SkillEnv):
    """One workbook, tools to read and write it, and a verdict at the end."""

    def __init__(
        self,
        *,
        skill: str = "",
        rule: Literal["fixed", "reference"] = "fixed",
        recalculation: bool = True,
        timeout_s: float = 60.0,
    ) -> None:
        """`skill`: a folder whose text is the system message. `rule`: of `compare_workbooks`.

        `timeout_s`: for computing the formulas of one workbook.
        """
        super().__init__(skill=skill)
        self._rule, self._recalculation = rule, recalculation
        self._timeout_s = as_number("timeout_s", timeout_s, above=0)
        self._book: Spreadsheet | None = None
        self._task: Task | None = None
        self.tools: Any = (Tool(self.list_sheets), Tool(self.read_cells), Tool(self.write_cell))

    # --- tools

    def list_sheets(self) -> dict[str, str]:
        """List the sheets of the workbook with their used ranges."""
        return self._open.sheets

    def read_cells(self, cells: str, sheet: str = "") -> dict[str, Any]:
        """Read cells of a sheet.

        Args:
            cells: a range such as A1:C9
            sheet: the sheet's name; the first sheet where empty
        """
        found = self._open.read(cells, sheet)
        if len(found) > MOST_SHOWN:
            raise UserError(f"{cells} has {len(found)} cells; read up to {MOST_SHOWN} at a time")
        return {
            name: (value.isoformat() if isinstance(value, datetime.date | datetime.time) else value)
            for name, value in found.items()
            if value is not None
        }

    def write_cell(self, cell: str, value: str | float | None, sheet: str = "") -> str:
        """Write one cell; a text that begins with = is a formula.

        Args:
            cell: its name, such as B2
            value: a number, a text, or null to empty the cell
            sheet: the sheet's name; the first sheet where empty
        """
        self._open.write({cell: value}, sheet)
        return "written"

    # --- the environment

    async def reset(self, task: Task, seed: int) -> Observation:
        """A fresh copy of the task's workbook, and the skill in front of the task."""
        self._task, self._book = task, Spreadsheet(_file(task, "workbook"))
        return Observation(self.opening(task))

    async def step(self, reply: Message) -> Observation:
        """The first reply without a call ends the work."""
        assert self._task is not None
        found = await in_thread(partial(self._scored, self._task), "the score of a workbook")
        if found.passed is None:
            raise RolloutError(f"task {self._task.id} cannot be scored: {found.message}")
        info = {"spreadsheet": found.message}
        return Observation(done=True, rewards={"passed": float(found.passed)}, info=info)

    async def cut(self) -> Observation:
        """What was written counts also where a limit ends the work."""
        return await self.step(Message("assistant", ""))

    @property
    def _open(self) -> Spreadsheet:
        assert self._book is not None
        return self._book

    def _scored(self, task: Task) -> Comparison:
        try:
            output = self._output()
        except SpreadsheetError as error:
            raise RolloutError(f"task {task.id} cannot be scored: {error}") from error
        return compare_workbooks(
            _file(task, "gold"),
            output,
            str(task.fields.get("answer_position") or ""),
            task.fields.get("answer_sheet"),
            rule=self._rule,
        )

    def _output(self) -> bytes:
        with tempfile.TemporaryDirectory(prefix="burnish-workbook-") as folder:
            path = Path(folder) / "output.xlsx"
            self._open.save(path)
            if self._recalculation and formula_cells(self._open.book):
                try:
                    recalculate(path, timeout_s=self._timeout_s)
                except SpreadsheetError:
                    # The published scorer reads a formula that was not computed as empty.
                    if self._rule != "reference":
                        raise
            return path.read_bytes()


def _file(task: Task, name: str) -> str | bytes:
    value = task.fields.get(name)
    if isinstance(value, io.BytesIO):
        return value.getvalue()
    if not isinstance(value, str | bytes) or not value:
        raise RolloutError(f"task {task.id} has no field '{name}'; expected a workbook's path")
    return value
