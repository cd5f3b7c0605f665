"""Answers to clients' texts in memory, which nobody can read without the text: an erasure need not reach them."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time

from cachetools import TTLCache
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

KEPT_S = 3600.0
"""Seconds for which an answer can be had."""
TIDIED = 10
"""Times in this period at which what is too old is deleted, also in an idle process."""
NONCE_BYTES = 12


class SealedCache:
    """The `most` newest answers of the last KEPT_S seconds; 0: none. Belongs to one event loop.

    It holds neither owner, text nor answer. A key that ends with the process makes a digest of owner and text: one half
    is the answer's name here, the other one encrypts the answer. Once a text is erased everywhere else, reading
    its answer takes this process's memory and a right guess of owner and text. The length is no secret.
    """

    def __init__(self, most: int, seconds: float = KEPT_S) -> None:
        self._key = secrets.token_bytes(hashlib.blake2b.MAX_KEY_SIZE)
        self._sealed: TTLCache[bytes, bytes] = TTLCache(most, seconds, timer=time.monotonic)
        self._tidying = False

    def get(self, owner: str, text: str) -> bytes | None:
        """Return the answer to this owner's text; None: not here."""
        name, cipher = self._seal(owner, text)
        sealed = self._sealed.get(name)
        return None if sealed is None else cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None)

    def put(self, owner: str, text: str, answer: bytes) -> None:
        if self._sealed.maxsize:
            name, cipher = self._seal(owner, text)
            nonce = secrets.token_bytes(NONCE_BYTES)
            self._sealed[name] = nonce + cipher.encrypt(nonce, answer, None)
            self._tidy_later()

    def _seal(self, owner: str, text: str) -> tuple[bytes, ChaCha20Poly1305]:
        both = f"{len(owner)} {owner}{text}".encode()
        digest = hashlib.blake2b(both, key=self._key).digest()
        return digest[:32], ChaCha20Poly1305(digest[32:])

    def _tidy_later(self) -> None:
        if not self._tidying:
            self._tidying = True
            asyncio.get_running_loop().call_later(self._sealed.ttl / TIDIED, self._tidy)

    def _tidy(self) -> None:
        self._tidying = False
        self._sealed.expire()
        if len(self._sealed):
            self._tidy_later()
