"""Our small vision-language model on drawn pictures."""
