"""The report of a run: one file that says what was run, what came of it and why.

report = contents_of(store)
Path("report.html").write_text(html_page(report))
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.view.report.contents import (
        Fact as Fact,
        RunReport as RunReport,
        Shown as Shown,
        contents_of as contents_of,
    )
    from burnish.view.report.page import html_page as html_page, markdown as markdown

__getattr__, __dir__ = lazy_exports(__name__)
