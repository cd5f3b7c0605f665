"""Extractors of object and background, judged on prompts labelled by hand and on captions of the scenes' grammar."""
