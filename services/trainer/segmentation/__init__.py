"""Train, judge and export the bundled segmenter: a CLIPSeg around the bundled CLIP-style pair (FlexCache §4.2.2)."""
