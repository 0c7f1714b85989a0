"""What a person sees of a run: curves in the terminal and as a picture."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.view.curves import (
        HeldOutPoint as HeldOutPoint,
        RunCurves as RunCurves,
        curves_of as curves_of,
        draw_picture as draw_picture,
        text_plot as text_plot,
    )

__getattr__, __dir__ = lazy_exports(__name__)
