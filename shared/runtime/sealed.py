"""Answers to clients' texts in memory, which nobody can read without the text: an erasure need not reach them."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time

from cachetools import TTLCache

KEPT_S = 3600.0
"""Seconds for which an answer stays."""
NONCE_BYTES = 16
TIDIED = 10
"""Times in this period at which what is too old is deleted, also in an idle process."""


class SealedCache:
    """The `most` newest answers of the last KEPT_S seconds; 0: none. Belongs to one event loop.

    Neither owner, text nor answer is in memory. A key that ends with the process makes a digest of owner and text: one
    half is the answer's name here, the other one, with a nonce, is expanded to a pad, which is added to the answer.
    Once a text is erased everywhere else, its answer is noise; only who guesses the whole text can read it.
    """

    def __init__(self, most: int, seconds: float = KEPT_S) -> None:
        self._key = secrets.token_bytes(hashlib.blake2b.MAX_KEY_SIZE)
        self._sealed: TTLCache[bytes, bytes] = TTLCache(most, seconds, timer=time.monotonic)
        self._tidying = False

    def get(self, owner: str, text: str) -> bytes | None:
        """Return the answer to this owner's text; None: not here."""
        name, secret = self._digest(owner, text)
        sealed = self._sealed.get(name)
        return None if sealed is None else _padded(sealed[NONCE_BYTES:], secret + sealed[:NONCE_BYTES])

    def put(self, owner: str, text: str, answer: bytes) -> None:
        if self._sealed.maxsize:
            name, secret = self._digest(owner, text)
            nonce = secrets.token_bytes(NONCE_BYTES)
            self._sealed[name] = nonce + _padded(answer, secret + nonce)
            self._tidy_later()

    def _digest(self, owner: str, text: str) -> tuple[bytes, bytes]:
        both = f"{len(owner)} {owner}{text}".encode()
        digest = hashlib.blake2b(both, key=self._key).digest()
        return digest[:32], digest[32:]

    def _tidy_later(self) -> None:
        if not self._tidying:
            self._tidying = True
            asyncio.get_running_loop().call_later(self._sealed.ttl / TIDIED, self._tidy)

    def _tidy(self) -> None:
        self._tidying = False
        self._sealed.expire()
        if len(self._sealed):
            self._tidy_later()


def _padded(data: bytes, seed: bytes) -> bytes:
    pad = hashlib.shake_256(seed).digest(len(data))
    return (int.from_bytes(data, "little") ^ int.from_bytes(pad, "little")).to_bytes(len(data), "little")
