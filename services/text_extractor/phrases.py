"""Tokens of a prompt, and the phrases that the grammar finds in one clause: object, place, position, style."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from services.text_extractor import Span
from services.text_extractor.lexicon import (
    ADVERBS,
    NEVER,
    ONLY_PLACES,
    PLACES,
    POSITIONS,
    PREPOSITIONS,
    SELDOM,
    SMALL,
    STOPS,
    STYLE,
    THINGS,
    TIMES,
)

_LETTERS = r"[^\W_](?:[^\W_]|[\u0300-\u036f])*"
"""Letters and digits, each with its combining marks."""
_TOKEN = re.compile(rf"{_LETTERS}(?:['’.:&\-]{_LETTERS})*|[^\w\s]|_")
_LONG = sorted((tuple(words.split()) for words in PREPOSITIONS), key=len, reverse=True)
BEFORE_NOUNS = frozenset(["the", "a", "an", "of", "to", "at", "into", "from", "his", "her", "its", "their"])
"""Words after which a word of STYLE is a noun of the sentence: "looks at the camera"."""
BECOMING = ("turn", "transform", "morph", "chang", "becom", "grow", "break", "explod", "melt", "dissol")
MOVING = ("run", "walk", "fly", "driv", "go", "rid", "mov", "travel", "swim", "jump", "fall", "climb", "march", "sail")
VERBAL = ("s", "ing", "ed", "ly")
MANNERS = frozenset(["alone", "together", "forward", "again", "away", "full", "happy", "slow", "fast", "like", "with"])
NOUN_WORDS = 7
"""Words after a preposition among which its noun is looked for."""


class Kind(Enum):
    OBJECT = "object"
    PLACE = "place"
    TIME = "time"
    POSITION = "position"
    STYLE = "style"


@dataclass(frozen=True, slots=True)
class Word:
    """One token: the text in lower case, and its characters in the prompt."""

    text: str
    start: int
    end: int
    title: bool = False
    """Written with a capital letter, and not in a text of capitals."""

    @property
    def is_word(self) -> bool:
        return self.text[0].isalnum()


@dataclass(frozen=True, slots=True)
class Phrase:
    """Tokens [start, end) of one kind; `sure`: the words themselves decide, not a guess about unknown ones."""

    kind: Kind
    start: int
    end: int
    sure: bool = True


def words_of(prompt: str, most: int) -> list[Word]:
    """Return the first `most` tokens of a prompt."""
    capitals = prompt.isupper()
    found: list[Word] = []
    for match in _TOKEN.finditer(prompt):
        if len(found) == most:
            break
        text = match[0]
        found.append(Word(text.lower(), match.start(), match.end(), text[0].isupper() and not capitals))
    return found


def characters(words: Sequence[Word], start: int, end: int) -> Span:
    """Return the characters of tokens [start, end), without punctuation at either end."""
    while start < end and not words[start].is_word:
        start += 1
    while start < end and not words[end - 1].is_word:
        end -= 1
    return words[start].start, words[end - 1].end


def singular(word: str) -> str:
    return word[:-3] + "y" if word.endswith("ies") else word[:-1] if word.endswith("s") else word


def names_place(word: str) -> bool:
    return word in PLACES or singular(word) in PLACES


def names_time(word: str) -> bool:
    return word in TIMES or (len(word) == 4 and word.isdecimal() and word[0] in "12")


def preposition(words: Sequence[Word], at: int, end: int) -> int:
    """Return how many tokens the preposition at this token has; 0: none begins here."""
    for one in _LONG:
        size = len(one)
        if at + size <= end and tuple(word.text for word in words[at : at + size]) == one:
            return size
    return 0


def phrases_of(words: Sequence[Word], start: int, end: int) -> list[Phrase]:
    """Return the phrases of the clause [start, end), in order and without gaps."""
    found: list[Phrase] = []
    begun = at = start
    while at < end:
        phrase = _after_preposition(words, at, end) or _style_at(words, at, end)
        if phrase is None:
            at += 1
            continue
        if begun < at:
            found.append(Phrase(Kind.OBJECT, begun, at))
        found.append(phrase)
        begun = at = phrase.end
    if begun < end:
        found.append(Phrase(Kind.OBJECT, begun, end))
    return found


def _style_at(words: Sequence[Word], at: int, end: int) -> Phrase | None:
    """Return the rest as style where only words of style follow: "ultra realistic 4k", "in anime style"."""
    rest = [word.text for word in words[at:end] if word.is_word]
    marked = sum(word in STYLE for word in rest)
    inside = at > 0 and words[at - 1].text in BEFORE_NOUNS
    strong = rest and not inside and (rest[0] in STYLE or (rest[0] in ("in", "with") and len(rest) > 1))
    enough = marked == len(rest) or (marked >= 2 and marked >= 0.6 * len(rest))
    named = len(rest) > 2 and rest[0] in ("in", "with") and rest[-1] in ("style", "styled", "art", "aesthetic")
    if strong and (named or (enough and not set(rest) <= {"in", "with"})):
        return Phrase(Kind.STYLE, at, end)
    if rest[:2] == ["style", "of"]:
        return Phrase(Kind.STYLE, at, end)
    return None


def _after_preposition(words: Sequence[Word], at: int, end: int) -> Phrase | None:
    """Return the place, time or position that begins with the preposition or adverb at this token."""
    text = words[at].text
    size = preposition(words, at, end)
    if text in ADVERBS and not (size and at + 1 < end and words[at + 1].text in SMALL | {"of"}):
        return Phrase(Kind.PLACE, at, at + 1)
    if text == "while" and {"background"} & {word.text for word in words[at:end]}:
        return Phrase(Kind.PLACE, at, end)
    if not size:
        return None
    name = " ".join(word.text for word in words[at : at + size])
    if name in ("on", "in", "at", "to") and (length := _position(words, at + size, end)):
        return Phrase(Kind.POSITION, at, at + size + length) if name != "to" else None
    nouns, stop = _nouns(words, at + size, end)
    before = words[at - 1].text if at > 0 else ""
    style = name != "with" and _style_at(words, at, end) is not None
    kind, sure = (None, True) if style or not nouns else _kind(name, before, [words[one] for one in nouns])
    return None if kind is None else Phrase(kind, at, stop, sure)


def _kind(name: str, before: str, nouns: Sequence[Word]) -> tuple[Kind | None, bool]:
    """Return whether a preposition and its nouns name a place, a time or neither, and whether known words decide."""
    texts = [word.text for word in nouns]
    last = texts[-1]
    places, times = any(map(names_place, texts)), any(map(names_time, texts))
    things = [one for one in texts if one in THINGS or singular(one) in THINGS]
    if name == "with":
        return (Kind.PLACE if last in ("background", "backdrop", "backround") else None), True
    if name == "to":
        return (Kind.PLACE if places and before.startswith(MOVING) else None), True
    if name in NEVER or all(one in STYLE for one in texts) or (name == "into" and before.startswith(BECOMING)):
        return None, True
    if things and (not places or (last in things and name in (*SELDOM, "in", "on", "at", "around"))):
        return None, True
    if places:
        return Kind.PLACE, name not in SELDOM or name == "into"
    if times and name not in ("into", "up", "onto"):
        return Kind.TIME, name not in SELDOM or name == "by"
    if name in SELDOM:
        return None, True
    if all(word.title for word in nouns) and name in ("in", "at", "near", "over", "through", "across"):
        return Kind.PLACE, name == "in" and last not in STYLE
    return (Kind.PLACE if name in ONLY_PLACES or name in ("in", "at") or " " in name else None), False


def _position(words: Sequence[Word], at: int, end: int) -> int:
    """Return how many tokens "the left", "the right side" … have here; 0: none, or `of` follows."""
    if at >= end or words[at].text != "the":
        return 0
    for size in (3, 2):
        after = at + size
        named = " ".join(word.text for word in words[at + 1 : min(after, end)])
        if after <= end and named in POSITIONS and not (after < end and words[after].text == "of"):
            return size
    return 0


def _nouns(words: Sequence[Word], at: int, end: int) -> tuple[list[int], int]:
    """Return the words of the noun phrase from this token on, without articles, and where the phrase ends.

    `of` and a second place continue it. Once a place is named, any word that names none ends it.
    """
    nouns: list[int] = []
    named = False
    while at < end and len(nouns) < NOUN_WORDS:
        word = words[at]
        known = names_place(word.text) or names_time(word.text)
        if not word.is_word or word.text in STOPS - {"and"}:
            break
        if word.text == "of" and nouns:
            inner, stop = _nouns(words, at + 1, end)
            return nouns + inner if not named else nouns, (stop if inner else at)
        if preposition(words, at, end) and not known:
            break
        if word.text == "and":
            inner, stop = _nouns(words, at + 1, end)
            joined = [one for one in inner if names_place(words[one].text) or names_time(words[one].text)]
            if not nouns or not joined or words[inner[0]].text.endswith("ing"):
                break
            return [*nouns, *inner], stop
        if named and not known and not (word.title and words[at - 1].title):
            if _one_more(words, at, end):  # "on a kitchen counter"
                return [*nouns, at], at + 1
            break
        if word.text in STYLE - PLACES - TIMES and nouns and not _known_after(words, at, end):
            break
        if nouns and word.text.endswith("ing") and not known and not _known_after(words, at, end):
            break
        named = named or (known and not (at + 1 < end and _goes_on(words[at + 1].text)))
        if word.text not in SMALL or word.text in ("one", "two", "three"):
            nouns.append(at)
        at += 1
    return nouns, at


def _one_more(words: Sequence[Word], at: int, end: int) -> bool:
    """Return whether this unknown word is the noun that a place describes: the phrase ends behind it."""
    text = words[at].text
    after = at + 1 == end or bool(preposition(words, at + 1, end)) or words[at + 1].text in STOPS
    return after and len(text) > 3 and not text.endswith(VERBAL) and text not in STYLE | MANNERS


def _goes_on(text: str) -> bool:
    """Return whether a place can be an adjective of this word: "city street", "snow covered"."""
    return names_place(text) or names_time(text) or text in ("covered", "filled", "side", "like", "style")


def _known_after(words: Sequence[Word], at: int, end: int) -> bool:
    """Return whether one of the next two words names a place or a time, without an article or preposition between."""
    for one in range(at + 1, min(end, at + 3)):
        if names_place(words[one].text) or names_time(words[one].text):
            return True
        if words[one].text in SMALL or preposition(words, one, end):
            return False
    return False
