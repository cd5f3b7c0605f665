"""Nouns, verbs and adjectives by what they name, from WordNet's files (Debian package `wordnet-base`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.domain.errors import ConfigurationError

FOLDER = Path("/usr/share/wordnet")
PLACES = (
    "building%1:06:00", "room%1:06:00", "way%1:06:00", "area%1:15:01", "establishment%1:06:00",
    "geological_formation%1:17:00", "land%1:17:00", "body_of_water%1:17:00", "region%1:15:00", "tract%1:15:00",
    "facility%1:06:00", "housing%1:06:00", "stage%1:06:00", "vegetation%1:14:00", "celestial_body%1:17:00",
)  # fmt: skip
"""Senses of which every kind is a place."""
GARMENTS = ("clothing%1:06:00", "headdress%1:06:00", "footwear%1:06:00", "armor_plate%1:06:00")
SEATS = ("furniture%1:06:00", "vehicle%1:06:00", "instrument%1:06:00")
"""Senses of things that an object holds, uses or sits on."""
BEINGS, THINGS, BODY = ("05", "18"), ("06", "13", "20"), ("08",)
ACTS = ("29", "34", "35", "36", "38")
"""WordNet's lexicographer files: animals, persons; artifacts, food, plants; parts of a body; acts one can see."""


@dataclass(frozen=True)
class Words:
    """Word lists, the most frequent word first."""

    beings: tuple[str, ...]
    things: tuple[str, ...]
    body: tuple[str, ...]
    garments: tuple[str, ...]
    held: tuple[str, ...]
    places: tuple[str, ...]
    acts: tuple[str, ...]
    adjectives: tuple[str, ...]


def read_words(folder: Path = FOLDER) -> Words:
    """Read the word lists. Raise ConfigurationError without WordNet's files."""
    if not (folder / "data.noun").is_file():
        raise ConfigurationError(
            f"wordnet: no data.noun in {folder}; install the Debian package wordnet-base, or name its folder"
        )
    counts = _counts(folder / "cntlist.rev")
    synset, above, spelling = _nouns(folder / "data.noun")
    kinds = {name: _below(synset, above, roots) for name, roots in
             (("places", PLACES), ("garments", GARMENTS), ("held", SEATS))}  # fmt: skip
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for key, count in counts.items():
        lemma, _, sense = key.partition("%")
        kind, file = sense.split(":")[:2]
        word = spelling.get(key, lemma).replace("_", " ")
        if not word.replace(" ", "").replace("-", "").isalpha() or word.count(" ") > 1:
            continue
        if kind == "1":
            group = next((name for name, keys in kinds.items() if key in keys), "")
            if not group and file in (*BEINGS, *THINGS, *BODY):
                group = "beings" if file in BEINGS else "body" if file in BODY else "things"
            if word[0].isupper() and group != "places":  # names of people say little about prompts
                group = ""
        else:
            group = "acts" if kind == "2" and file in ACTS else "adjectives" if kind in "35" else ""
            if " " in word:
                continue
        if group:
            found[group][word] = found[group].get(word, 0) + count
    return Words(**{name: _by_count(found[name]) for name in Words.__dataclass_fields__})


def _by_count(words: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(sorted(words, key=lambda word: (-words[word], word)))


def _counts(path: Path) -> dict[str, int]:
    """Return sense key → uses in WordNet's tagged texts, for each word's first sense."""
    found = {}
    for line in path.read_text(encoding="ascii").splitlines():
        key, number, count = line.split()
        if number == "1":
            found[":".join(key.split(":")[:3])] = int(count)
    return found


def _nouns(path: Path) -> tuple[dict[str, str], dict[str, list[str]], dict[str, str]]:
    """Return sense key → synset, synset → synsets above it, and sense key → spelling."""
    synset, above, spelling = {}, {}, {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("  "):
            continue
        offset, file, _, number, *rest = line.split(" | ")[0].split()
        size = 2 * int(number, 16)
        for word, lex in zip(rest[:size:2], rest[1:size:2], strict=True):
            key = f"{word.lower()}%1:{file}:{int(lex, 16):02d}"
            synset[key], spelling[key] = offset, word
        pointers = rest[size + 1 :]
        above[offset] = [pointers[n + 1] for n in range(0, len(pointers) - 3, 4) if pointers[n] in ("@", "@i")]
    return synset, above, spelling


def _below(synset: Mapping[str, str], above: Mapping[str, list[str]], roots: Iterable[str]) -> set[str]:
    """Return the sense keys of every kind of the roots."""
    wanted = {synset[root] for root in roots if root in synset}
    known: dict[str, bool] = {}

    def under(offset: str) -> bool:
        if offset not in known:
            known[offset] = False
            known[offset] = offset in wanted or any(under(one) for one in above.get(offset, ()))
        return known[offset]

    return {key for key, offset in synset.items() if under(offset)}
