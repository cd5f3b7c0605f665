"""A grammar over the prompt: rules about clauses, prepositions and nouns of places find both spans without a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from services.text_extractor import Extraction
from services.text_extractor.lexicon import ENGLISH, MEDIA, OF, ORDERS, OTHER_LANGUAGES, SMALL, STOPS, STYLE
from services.text_extractor.phrases import (
    Kind,
    Phrase,
    Word,
    characters,
    names_place,
    names_time,
    phrases_of,
    preposition,
    words_of,
)

FOREIGN_SHARE = 0.2
"""Share of letters outside ASCII above which the prompt is in no language that the grammar knows."""
CLAUSES = 12
"""Clauses above which the grammar is not sure which one names the object."""
LONG_OBJECT = 30
"""Words of an object above which a rule must have failed to end it."""


class Grammar:
    """Spans by rules; sure where only known words decided."""

    id = "grammar"
    seats = 256

    def __init__(self, tokens: int = 77) -> None:
        """tokens: words and signs of a prompt that are read, at most as many as the video model reads (§5)."""
        self._tokens = tokens

    def extract(self, prompts: Sequence[str]) -> list[Extraction]:
        return [self._extract(prompt) for prompt in prompts]

    def _extract(self, prompt: str) -> Extraction:
        words = words_of(prompt, self._tokens)
        clauses = list(_clauses(words, _after_frame(words)))
        phrases = [phrase for start, end in clauses for phrase in _phrases(words, start, end)]
        thing, place = _object(words, phrases), _background(phrases)
        if thing is None and place is not None and not place.sure:
            place = None
        chosen = [phrase for phrase in (thing, place) if phrase is not None]
        spans = [None if phrase is None else characters(words, phrase.start, phrase.end) for phrase in (thing, place)]
        sure = (
            thing is not None
            and not _left_behind(words, phrases, thing)
            and all(phrase.sure for phrase in chosen)
            and all(phrase.sure for phrase in phrases if phrase.kind is Kind.PLACE)
            and thing.end - thing.start <= LONG_OBJECT
            and len(clauses) <= CLAUSES
            and _foreign(prompt) <= FOREIGN_SHARE
            and not _other_language(words)
        )
        return Extraction(spans[0], spans[1], sure)


def _foreign(prompt: str) -> float:
    letters = [one for one in prompt if one.isalpha()]
    return sum(not one.isascii() for one in letters) / len(letters) if letters else 0.0


def _other_language(words: Sequence[Word]) -> bool:
    """Return whether small words of other languages are more than those of English."""
    texts = [word.text for word in words]
    return sum(text in OTHER_LANGUAGES for text in texts) > sum(text in ENGLISH for text in texts)


def _after_frame(words: Sequence[Word]) -> int:
    """Return the first token after a frame such as "create a video of" or "cinematic shot of"."""
    start = 0
    while start < len(words) and words[start].text in ORDERS - SMALL - {"in", "me"}:
        start += 1
    if start:  # an instruction: its article goes on with the object, its medium does not
        while start < len(words) and words[start].text in ("me", "you", "ai", "video", "animation"):
            start += 1
    end = next((at for at in range(start, len(words)) if not words[at].is_word), len(words))
    for at in range(min(end, start + 12) - 1, start, -1):
        if any(words[one].text in ("in", "on", "at", "with", "through") for one in range(start, at - 1)):
            continue
        zoom = words[at - 1].text in ("in", "out", "up") and words[at - 2].text in MEDIA | {"close"}
        medium = zoom or words[at - 1].text in MEDIA
        if words[at].text in OF and medium and words[at].text not in ("in", "with", "from"):
            return at + 1
    return start


def _clauses(words: Sequence[Word], start: int) -> Iterator[tuple[int, int]]:
    """Yield the token ranges between punctuation marks."""
    begun = start
    for at in range(start, len(words) + 1):
        if at == len(words) or not words[at].is_word:
            if begun < at:
                yield begun, at
            begun = at + 1


def _phrases(words: Sequence[Word], start: int, end: int) -> list[Phrase]:
    """Return the clause's phrases; a clause about style is one phrase, and a landscape is a place or a time."""
    texts = [word.text for word in words[start:end] if word.text not in SMALL]
    marked = sum(text in STYLE for text in texts)
    plain = not any(preposition(words, at, end) and words[at].text != "of" for at in range(start, end))
    plain = plain and not any(text.endswith("ing") for text in texts)
    medium = plain and texts[-1:] and texts[-1] in MEDIA | {"style", "styled", "aesthetic"}
    named = words[start].text in ("a", "an", "the") or not texts or texts[-1] not in STYLE
    share = 0.67 if named else 0.5
    if not texts or marked >= max(1.0, share * len(texts)) or medium or texts[:2] == ["seen", "from"]:
        return [Phrase(Kind.STYLE, start, end)]
    found = phrases_of(words, start, end)
    if words[start].text == "by" and found[0].kind is Kind.OBJECT:  # "by" and the name of an artist
        return [Phrase(Kind.STYLE, start, end)]
    return [_as_place(words, phrase) if phrase.kind is Kind.OBJECT else phrase for phrase in found]


def _as_place(words: Sequence[Word], phrase: Phrase) -> Phrase:
    """Return a noun phrase whose last word names a place or a time as such; any other as it is."""
    texts = [word.text for word in words[phrase.start : phrase.end]]
    if all(text in STYLE | SMALL for text in texts):
        return Phrase(Kind.STYLE, phrase.start, phrase.end)
    if len(texts) > 6 or any(text.endswith("ing") for text in texts):
        return phrase
    if names_time(texts[-1]):
        return Phrase(Kind.TIME, phrase.start, phrase.end)
    return Phrase(Kind.PLACE, phrase.start, phrase.end) if names_place(texts[-1]) else phrase


def _begins(words: Sequence[Word], phrase: Phrase) -> bool:
    """Return whether a phrase can name the object: what follows "where", "with" … goes on about something else."""
    return words[phrase.start].text not in STOPS and not preposition(words, phrase.start, phrase.end)


def _bare(words: Sequence[Word], phrase: Phrase) -> bool:
    """Return whether a place or time has no preposition: it may be the object, as in "a castle in the snow"."""
    return phrase.kind in (Kind.PLACE, Kind.TIME) and phrases_of(words, phrase.start, phrase.end)[0].kind is Kind.OBJECT


def _left_behind(words: Sequence[Word], phrases: Sequence[Phrase], thing: Phrase) -> bool:
    """Return whether "a" noun of a place comes before an object without an article, and may be the object itself: in
    "a boat, in the sea, sails" it is, in "a beach, people swim" it is not."""
    before = [one for one in phrases if one.end <= thing.start and _bare(words, one)]
    return words[thing.start].text not in SMALL and any(words[one.start].text in ("a", "an") for one in before)


def _object(words: Sequence[Word], phrases: list[Phrase]) -> Phrase | None:
    """Return the first object with what belongs to it, and take a place for it where no object is named."""
    at = next((n for n, one in enumerate(phrases) if one.kind is Kind.OBJECT and _begins(words, one)), None)
    bare = next((n for n, one in enumerate(phrases) if _bare(words, one)), None)
    if bare is not None and (at is None or (bare < at and phrases[bare].end == phrases[at].start)):
        others = [one for n, one in enumerate(phrases) if n != bare and one.kind is Kind.PLACE]
        if others:
            phrases[bare] = Phrase(Kind.OBJECT, phrases[bare].start, phrases[bare].end)
            at = bare
    if at is None:
        return None
    first, end = phrases[at], phrases[at].end
    for one in phrases[at + 1 :]:
        gap = one.start - end
        if gap > 1:
            break
        joins = one.kind is Kind.POSITION and gap == 0
        goes_on = one.kind is Kind.OBJECT and (
            gap == 0 or _goes_on(words, one) or _only_adjectives(words, first.start, end)
        )
        if not joins and not goes_on:
            break
        end = one.end
    return Phrase(Kind.OBJECT, first.start, end, first.sure)


def _goes_on(words: Sequence[Word], phrase: Phrase) -> bool:
    """Return whether a clause goes on about the same object: it begins with a participle or "and"."""
    first = words[phrase.start].text
    return first == "and" or (first.endswith("ing") and len(first) > 4)


def _only_adjectives(words: Sequence[Word], start: int, end: int) -> bool:
    """Return whether each clause so far is one word, as in "cute, happy, …"."""
    return all(words[at].is_word != words[at + 1].is_word for at in range(start, end - 1))


def _background(phrases: Sequence[Phrase]) -> Phrase | None:
    """Return the first place, or else the first time, with the places and times beside it."""
    at = next((n for kind in (Kind.PLACE, Kind.TIME) for n, one in enumerate(phrases) if one.kind is kind), None)
    if at is None:
        return None
    first = last = at
    kinds = (Kind.PLACE, Kind.TIME)
    while first > 0 and phrases[first - 1].kind in kinds and phrases[first].start - phrases[first - 1].end <= 1:
        first -= 1
    while (
        last + 1 < len(phrases) and phrases[last + 1].kind in kinds and phrases[last + 1].start - phrases[last].end <= 1
    ):
        last += 1
    sure = all(one.sure for one in phrases[first : last + 1])
    return Phrase(Kind.PLACE, phrases[first].start, phrases[last].end, sure)
