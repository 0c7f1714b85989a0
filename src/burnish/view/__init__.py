"""What a person sees of a run: curves in the terminal and as a picture."""

from burnish.view.curves import HeldOutPoint, RunCurves, curves_of, draw_picture, text_plot

__all__ = ["HeldOutPoint", "RunCurves", "curves_of", "draw_picture", "text_plot"]
