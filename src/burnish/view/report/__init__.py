"""The report of a run: one file that says what was run, what came of it and why.

report = contents_of(store)
Path("report.html").write_text(html_page(report))
"""

from burnish.view.report.contents import Fact, RunReport, Shown, contents_of
from burnish.view.report.page import html_page
from burnish.view.report.text import markdown

__all__ = ["Fact", "RunReport", "Shown", "contents_of", "html_page", "markdown"]
