"""Prompts of random wording with their parts, from templates over WordNet's words and from the scenes' captions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from services.trainer.extraction.wordnet import Words
from shared.domain.parts import Parts
from shared.models.scenes import CLIP_WORDINGS, WORDINGS, held_out, random_moving_scene, random_scene
from shared.models.scenes.parts import caption_parts, clip_caption_parts, wording_held_out

CAPTIONS = 0.2
"""Share of the scenes' own captions, in the wordings and combinations that are not held out."""

COLOURS = (
    "red", "blue", "green", "yellow", "black", "white", "golden", "silver", "purple", "pink", "orange", "dark",
)  # fmt: skip
COUNTS = ("two", "three", "four", "five", "some", "many", "several", "2", "3", "10")
FRAMES = (
    "a video of", "video of", "create a video of", "generate a clip of", "cinematic shot of", "a close up of", "make",
    "close-up shot of", "a painting of", "an animation of", "timelapse of", "drone footage of", "a scene of", "create",
    "slow motion video of", "wide shot of", "a photo of", "aerial view of", "a pencil sketch of", "a 3d render of",
    "a film where", "an animated scene where", "a video showing", "extreme close-up of", "old film footage of",
)  # fmt: skip
STYLES = (
    "4k", "8k", "cinematic", "ultra realistic", "hyper realistic", "realistic", "hd", "high quality", "anime style",
    "pixar style", "in anime style", "in the style of studio ghibli", "cartoon style", "highly detailed", "3d", "35mm",
    "photorealistic", "cinematic lighting", "black and white", "slow motion", "pixel art", "watercolour", "vhs",
    "pencil sketch", "wide angle", "unreal engine", "dramatic lighting", "vibrant colors", "16:9", "film grain",
    "oil painting", "retro style", "cyberpunk style", "close up", "camera zooms in", "camera pans left",
    "octane render", "full body", "masterpiece", "trending on artstation", "moody", "minimalist", "bokeh",
)  # fmt: skip
TIMES = (
    "at night", "by night", "by day", "at sunset", "at dawn", "at dusk", "at sunrise", "in the morning", "at noon",
    "in the rain", "in the evening sun", "in winter", "in summer", "during a storm", "in daylight", "in the fog",
    "on a sunny day", "on a rainy day", "in the moonlight", "under a starry sky", "in the wind", "in the 1920s",
    "in the year 3000", "in the future", "on a dark and stormy night", "in the dark", "at midnight", "in the sunlight",
)  # fmt: skip
BARE = (
    "sunset", "night", "rainy day", "starry sky", "dark background", "white background", "blue sky", "stormy night",
    "foggy morning", "snow", "city lights", "summer", "winter", "autumn forest", "night sky", "sky and clouds",
)  # fmt: skip
WHERE = (
    "in", "in", "in", "in", "on", "on", "at", "inside", "near", "under", "above", "through", "across", "along", "over",
    "outside", "behind", "around", "beside", "in front of", "in the middle of", "next to", "on top of", "among", "down",
    "at the edge of", "into", "towards",
)  # fmt: skip
MANNERS = (
    "in slow motion", "in the air", "in love", "like a human", "like a bird", "for the first time", "with joy", "alone",
    "from behind", "at high speed", "very fast", "slowly", "happily", "at the camera", "to the left", "to the right",
    "together", "in a circle", "up and down", "with each other", "from side to side", "in his hand", "on her back",
)  # fmt: skip
ENDINGS = (
    "and smiles",
    "and looks at the camera",
    "while talking on the phone",
    "and laughs",
    "and waves",
    "and stops",
)


@dataclass(frozen=True)
class Wording:
    """A prompt and its parts, as characters [start, end)."""

    text: str
    object: tuple[int, int] | None
    background: tuple[int, int] | None


class Wordings:
    """Random wordings; the same random state gives the same wordings."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def sample(self, rng: random.Random) -> Wording:
        """Return one wording, of the scenes or of the templates."""
        if rng.random() < CAPTIONS:
            return _caption(rng)
        pieces = self._pieces(rng)
        return _noisy(pieces, rng)

    def _pieces(self, rng: random.Random) -> list[tuple[str, str]]:
        """Return (role, words) in order; roles: object, background, and others that belong to neither."""
        thing, place = self._object(rng), self._place(rng)
        match rng.randrange(20):
            case 0 | 1 | 2 | 3 | 4 | 5 | 6:
                pieces = [("object", thing), ("background", place)]
            case 7 | 8 | 9 | 10 | 11:
                pieces = [("object", thing)]
            case 12 | 13:
                pieces = [("background", place), (",", ""), ("object", thing)]
            case 14:
                pieces = [("object", thing), (",", ""), ("background", rng.choice(BARE))]
            case 15:
                pieces = [("object", thing), (",", ""), ("background", self._bare_place(rng))]
            case 16:
                pieces = [("background", self._bare_place(rng))]
            case 17:
                pieces = [("object", thing), ("background", place), ("", rng.choice(ENDINGS))]
            case 18:
                pieces = [("object", self._bare_place(rng)), ("background", place)]
            case _:
                pieces = [("background", rng.choice(TIMES)), (",", ""), ("object", thing)]
        if rng.random() < 0.3:
            pieces = [("", rng.choice(FRAMES)), *pieces]
        elif rng.random() < 0.12:
            pieces = [("", rng.choice(STYLES)), (",", ""), *pieces]
        for _ in range(rng.choice((0, 0, 1, 2, 3, 5))):
            pieces += [(",", "")] * (rng.random() < 0.85) + [("", rng.choice(STYLES))]
        return pieces

    def _object(self, rng: random.Random) -> str:
        words = self._words
        name = (
            _name(rng) if rng.random() < 0.15 else self._noun(rng, words.beings if rng.random() < 0.7 else words.things)
        )
        text = name
        roll = rng.random()
        if roll < 0.12:
            text += f" with {self._noun(rng, words.body)}"
        elif roll < 0.2:
            text += f" {rng.choice(('in', 'wearing', 'dressed in'))} {self._noun(rng, words.garments)}"
        elif roll < 0.28:
            text += f" and {self._noun(rng, words.beings)}"
        if rng.random() < 0.75:
            text += " " + self._act(rng)
        return text

    def _act(self, rng: random.Random) -> str:
        words = self._words
        verb = _pick(words.acts, rng)
        form = rng.randrange(8)
        text = [_ing(verb), _ing(verb), _ing(verb), f"is {_ing(verb)}", _third(verb), _third(verb), verb, _ing(verb)][
            form
        ]
        roll = rng.random()
        if roll < 0.3:
            text += " " + self._noun(rng, words.things if rng.random() < 0.6 else words.beings)
        elif roll < 0.45:
            text += f" {rng.choice(('on', 'with', 'in', 'holding', 'at', 'from', 'by'))} {self._noun(rng, words.held)}"
        elif roll < 0.6:
            text += " " + rng.choice(MANNERS)
        if rng.random() < 0.12:
            text += f" {rng.choice(('and', 'while'))} {_ing(_pick(words.acts, rng))}"
        return text

    def _place(self, rng: random.Random) -> str:
        if rng.random() < 0.12:
            return rng.choice(TIMES)
        if rng.random() < 0.08:
            return f"{rng.choice(('in', 'in', 'at', 'near'))} {_name(rng)}"
        text = f"{rng.choice(WHERE)} {self._noun(rng, self._words.places, plural=0.12)}"
        roll = rng.random()
        if roll < 0.12:
            text += f" of {_name(rng) if rng.random() < 0.4 else self._noun(rng, self._words.things, plural=0.6)}"
        elif roll < 0.2:
            text += f" {rng.choice(('in', 'near', 'of'))} {self._noun(rng, self._words.places)}"
        if rng.random() < 0.2:
            text += " " + rng.choice(TIMES)
        return text

    def _bare_place(self, rng: random.Random) -> str:
        return self._noun(rng, self._words.places, plural=0.15)

    def _noun(self, rng: random.Random, words: Sequence[str], plural: float = 0.15) -> str:
        """Return a noun phrase: article or number, up to two adjectives, noun."""
        noun = _pick(words, rng)
        described = rng.choice((0, 0, 1, 1, 2))
        adjectives = [
            rng.choice(COLOURS) if rng.random() < 0.3 else _pick(self._words.adjectives, rng) for _ in range(described)
        ]
        if noun[0].isupper():
            return noun
        if rng.random() < plural:
            return " ".join([*([rng.choice(COUNTS)] if rng.random() < 0.5 else []), *adjectives, _plural(noun)])
        first = (adjectives or [noun])[0]
        article = rng.choice(("", "the", "a", "a", "an" if first[0] in "aeiou" else "a"))
        return " ".join([*([article] if article else []), *adjectives, noun])


def _caption(rng: random.Random) -> Wording:
    """Return a caption of the scenes' grammar, without the wordings and combinations that are held out."""
    while True:
        if rng.random() < 0.6:
            number = rng.randrange(CLIP_WORDINGS)
            text, parts = clip_caption_parts(random_moving_scene(rng), number)
        else:
            number, scene = rng.randrange(WORDINGS), random_scene(rng)
            if held_out(scene):
                continue
            text, parts = caption_parts(scene, number)
        if not wording_held_out(number):
            return Wording(text, *_spans(text, parts))


def _spans(text: str, parts: Parts) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    def found(part: str) -> tuple[int, int] | None:
        return (text.index(part), text.index(part) + len(part)) if part else None

    return found(parts.object), found(parts.background)


def _noisy(pieces: Sequence[tuple[str, str]], rng: random.Random) -> Wording:
    """Join the pieces; some prompts have misspelt words, no commas, or other cases, as users' prompts do."""
    commas, typos = rng.random() < 0.9, rng.random() < 0.25
    shape = rng.choice((str, str, str, str.capitalize, str.upper if rng.random() < 0.1 else str, str.lower))
    text, spans = "", dict[str, tuple[int, int]]()
    for role, words in pieces:
        if role == ",":
            text += "," if commas and text else ""
            continue
        if typos:
            words = " ".join(_misspelt(word, rng) if rng.random() < 0.1 else word for word in words.split())
        text += " " if text else ""
        spans[role] = (len(text), len(text) + len(words))
        text += words
    return Wording(shape(text), spans.get("object"), spans.get("background"))


def _misspelt(word: str, rng: random.Random) -> str:
    if len(word) < 4:
        return word
    at = rng.randrange(1, len(word) - 1)
    return rng.choice(
        (
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :],
        )
    )


def _pick(words: Sequence[str], rng: random.Random) -> str:
    """Return a word; the first ones, which are the most frequent, more often."""
    return words[int(len(words) * rng.random() ** 2)]


def _name(rng: random.Random) -> str:
    syllables = (
        "ka",
        "ro",
        "lin",
        "ma",
        "to",
        "ber",
        "san",
        "el",
        "vi",
        "dor",
        "na",
        "chi",
        "mus",
        "ter",
        "jo",
        "han",
        "li",
        "zu",
    )
    words = ["".join(rng.choices(syllables, k=rng.randint(2, 3))).capitalize() for _ in range(rng.choice((1, 1, 2)))]
    return " ".join(words)


def _ing(verb: str) -> str:
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith(("ee", "oe", "ye")):
        return verb[:-1] + "ing"
    return verb + verb[-1] * _doubles(verb) + "ing"


def _doubles(verb: str) -> bool:
    vowels = "aeiou"
    return (
        len(verb) <= 4
        and len(verb) > 2
        and verb[-1] not in vowels + "wxy"
        and verb[-2] in vowels
        and verb[-3] not in vowels
    )


def _third(verb: str) -> str:
    return verb[:-1] + "ies" if verb.endswith("y") and verb[-2:-1] not in tuple("aeiou") else _plural(verb)


def _plural(noun: str) -> str:
    if noun.endswith(("s", "x", "ch", "sh", "z", "o")):
        return noun + "es"
    if noun.endswith("y") and noun[-2:-1] not in tuple("aeiou"):
        return noun[:-1] + "ies"
    return noun + "s"
