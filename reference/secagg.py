"""Secure aggregation in one file: what `sequester.secagg` says on the wire, and why it works.

Members 0 … n−1 each hold a vector of 32-bit words. The server learns the sum of those who stay
and nothing else. Every pair (i, j) agrees on a key by Diffie-Hellman; i adds the keystream of
that key to its vector and j takes it away, so they cancel in the sum. Against a vector that
arrives late each member adds a second keystream, from a seed of its own. Seed and private key
are secret-shared among all. For each member the others then reveal the seed (if its vector
arrived) or the key (if not), never both, and only after they have confirmed to one another
that they were all told of the same survivors.

This file follows `docs/secagg-spec.md`, shares no code with the package, is imported by nothing
and makes the same bytes (`tests/transcripts`). It takes the full graph, 32-bit words and
dropouts before the masked vector. It is to be read, not used: it keeps no secret from timing.

    python reference/secagg.py        # five members, one drops out, the sum is right
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

LABEL = b"sequester secagg v1 "
P = 65537
SEED, KEY = b"\x00", b"\x01"


def u32(*numbers: int) -> bytes:
    """Four little-endian bytes each."""
    return struct.pack(f"<{len(numbers)}I", *numbers)


def digest(label: bytes, *parts: bytes) -> bytes:
    """A labelled SHA-256."""
    return hashlib.sha256(LABEL + label + b"\0" + b"".join(parts)).digest()


def derive(secret: bytes, label: bytes, context: bytes, count: int = 32) -> bytes:
    """HKDF-SHA256 with an empty salt, from RFC 5869."""
    prk, block, out = hmac.digest(bytes(32), secret, "sha256"), b"", b""
    while len(out) < count:
        block = hmac.digest(
            prk, block + LABEL + label + b"\0" + context + bytes([len(out) // 32 + 1]), "sha256"
        )
        out += block
    return out[:count]


def counter_mode(key: bytes, count: int, first: int) -> bytes:
    """AES in counter mode from block `first`."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(first.to_bytes(16, "big")))
    return cipher.encryptor().update(bytes(count))


def message(kind: int, session: bytes, body: bytes) -> bytes:
    """Magic, version, type, the session's first 16 bytes, the body."""
    return b"SQSA" + bytes([1, kind]) + session[:16] + body


def listed(rows: list[bytes]) -> bytes:
    """A list: its length, then its rows."""
    return u32(len(rows)) + b"".join(rows)


def encode_session(s: dict) -> bytes:
    """The parameters that everything is bound to."""
    name = s["run"].encode()
    out = bytes([len(name)]) + name + struct.pack("<Q", s["round_number"])
    out += s["model"] + s["config"] + s["roster"]
    out += struct.pack("<HHIHB", s["threshold"], s["degree"], s["length"], s["wide"], s["bits"])
    return out + u32(s["min_cohort"], s["min_survivors"]) + bytes([s["active"]])


def public(private: bytes) -> bytes:
    """The X25519 public key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, other: bytes) -> bytes:
    """The X25519 shared secret."""
    peer = X25519PublicKey.from_public_bytes(other)
    return X25519PrivateKey.from_private_bytes(private).exchange(peer)


def share(secret: bytes, n: int, t: int, key: bytes) -> list[list[int]]:
    """Shamir over GF(65537), one polynomial per 16-bit word; the randomness comes from `key`."""
    words = struct.unpack(f"<{len(secret) // 2}H", secret)
    # `Keystream`: AES-256 in counter mode under a key bound to run, purpose, rank and step.
    label = b"0:|13:secagg shares|0|0"
    block_key = hashlib.blake2b(label, key=key, digest_size=32).digest()
    count = (t - 1) * len(words)
    draws = [v % P for v in struct.unpack(f"<{count}Q", counter_mode(block_key, 8 * count, 0))]
    rows = [list(words)] + [draws[r * len(words) : (r + 1) * len(words)] for r in range(t - 1)]
    return [
        [sum(rows[e][w] * pow(x, e, P) for e in range(t)) % P for w in range(len(words))]
        for x in range(1, n + 1)
    ]


def recover(points: list[int], shares: list[list[int]]) -> bytes:
    """Lagrange's interpolation at 0."""
    out = [0] * len(shares[0])
    for x, row in zip(points, shares, strict=True):
        weight = 1
        for other in points:
            if other != x:
                weight = weight * other * pow(other - x, -1, P) % P
        out = [(o + weight * y) % P for o, y in zip(out, row, strict=True)]
    return struct.pack(f"<{len(out)}H", *out)


def share_bytes(row: list[int]) -> bytes:
    """Low 16 bits of each word, then one bit each for the value 65536."""
    high = sum((v >> 16) << i for i, v in enumerate(row))
    return struct.pack(f"<{len(row)}H", *(v & 0xFFFF for v in row)) + high.to_bytes(2, "little")


def transcript(s: dict, identities: list[bytes], secrets: list[bytes], vectors, dropped) -> dict:
    """Play one round; every message by name, and the sum.

    Args:
        s: The session's fields; `wide` words of each vector come first in the keystream.
        identities: Ed25519 private keys of members 0 … n−1.
        secrets: 32 bytes each, from which a member derives its keys.
        vectors: Each member's (narrow, wide) words, lists of integers.
        dropped: Members whose masked vector never arrives.
    """
    n, t, members = len(secrets), s["threshold"], range(len(secrets))
    alive = [i for i in members if i not in dropped]
    encoded = encode_session(s)
    session = digest(b"session", encoded)
    said = {"offer": b"SQSA" + bytes([1, 1]) + bytes(16) + encoded}

    # 1. Fresh keys and a nonce, signed.
    channel = [derive(x, b"channel key", session) for x in secrets]
    mask = [derive(x, b"mask key", session) for x in secrets]
    nonce = [derive(x, b"nonce", session, 4) for x in secrets]
    keys = []
    for i in members:
        pair = public(channel[i]) + public(mask[i])
        signed = LABEL + b"advert\0" + session + u32(i) + pair + nonce[i]
        keys.append(
            u32(i) + pair + Ed25519PrivateKey.from_private_bytes(identities[i]).sign(signed)
        )
        said[f"advert {i}"] = message(2, session, keys[i] + nonce[i])
    entries = [u32(i) + nonce[i] for i in members]
    cohort = digest(b"cohort", session, *entries)
    for i in members:
        others = listed([keys[j] for j in members if j != i])
        said[f"peers {i}"] = message(3, session, listed(entries) + others)

    # 2. Seed and key, shared with everybody under pairwise keys.
    seed = [derive(x, b"self mask", cohort) for x in secrets]
    dealt, parcel, tag_key = {}, {}, {}
    for i in members:
        rows = share(seed[i] + mask[i], n, t, derive(secrets[i], b"shares", cohort))
        own = b""
        for j in members:
            dealt[i, j] = [share_bytes(rows[j][:16]), share_bytes(rows[j][16:])]
            seed_check, key_check = (
                digest(b"share", cohort, kind, u32(i, j), part)[:16]
                for kind, part in zip((SEED, KEY), dealt[i, j], strict=True)
            )
            if i == j:
                own = seed_check
                continue
            pair = cohort + u32(min(i, j), max(i, j))
            both = derive(agree(channel[i], public(channel[j])), b"channel", pair, 64)
            tag_key[i, j] = both[32:]
            head = seed_check + key_check
            sealed = AESGCM(both[:32]).encrypt(
                bytes(11) + (b"\1" if i < j else b"\2"),
                b"".join(dealt[i, j]),
                cohort + u32(i, j) + head,
            )
            parcel[i, j] = head + sealed
        body = u32(i) + digest(b"commitment", cohort, u32(i), seed[i]) + own
        mine = listed([u32(j) + parcel[i, j] for j in members if j != i])
        said[f"shares {i}"] = message(4, session, body + mine)
    for i in members:
        inbox = listed([u32(j) + parcel[j, i] for j in members if j != i])
        said[f"sealed {i}"] = message(5, session, inbox)

    # 3. Masked vectors: + own seed, + keys of higher members, − keys of lower ones.
    def keystream(key: bytes) -> list[int]:
        count = s["wide"] + s["length"]
        return list(struct.unpack(f"<{count}I", counter_mode(key, 4 * count, 2)))

    def pair_stream(i: int, j: int) -> list[int]:
        pair = cohort + u32(min(i, j), max(i, j))
        return keystream(derive(agree(mask[i], public(mask[j])), b"pair mask", pair, 16))

    def self_stream(value: bytes, i: int) -> list[int]:
        return keystream(derive(value, b"self mask", cohort + u32(i), 16))

    total = [0] * (s["wide"] + s["length"])
    for i in alive:
        words = vectors[i][1] + vectors[i][0]
        streams = [(1, self_stream(seed[i], i))]
        streams += [(1 if i < j else -1, pair_stream(i, j)) for j in members if j != i]
        for sign, stream in streams:
            words = [(w + sign * k) % 2**32 for w, k in zip(words, stream, strict=True)]
        total = [(a + b) % 2**32 for a, b in zip(total, words, strict=True)]
        body = u32(i) + u32(*words[s["wide"] :]) + u32(*words[: s["wide"]])
        said[f"masked {i}"] = message(6, session, body)

    # 4. Everybody confirms the survivors to everybody.
    bits = sum(1 << i for i in alive).to_bytes((n + 7) // 8, "little")
    said["survivors"] = message(7, session, u32(len(bits)) + bits)
    statement = digest(b"survivors", cohort, bits)

    def tag(i: int, j: int) -> bytes:
        return hmac.digest(tag_key[i, j], b"confirm\0" + statement + u32(i, j), "sha256")[:16]

    for i in alive:
        said[f"confirm {i}"] = message(
            8, session, u32(i) + listed([u32(j) + tag(i, j) for j in alive if j != i])
        )
        said[f"confirmed {i}"] = message(
            9, session, listed([u32(j) + tag(j, i) for j in alive if j != i])
        )

    # 5. One kind of share for each member; the server takes the masks off.
    for i in alive:
        seeds = listed([u32(j) + dealt[j, i][0] for j in alive])
        lost = listed([u32(j) + dealt[j, i][1] for j in members if j in dropped])
        said[f"reveal {i}"] = message(10, session, u32(i) + seeds + lost)
    rows = {
        i: share(seed[i] + mask[i], n, t, derive(secrets[i], b"shares", cohort)) for i in members
    }
    opened = {i: [rows[i][j] for j in alive[:t]] for i in members}
    points = [j + 1 for j in alive[:t]]
    for i in members:
        secret = recover(points, opened[i])
        streams = [(-1, self_stream(secret[:32], i))]
        if i in dropped:  # Survivor j holds ± the stream of the pair (j, i).
            mask[i] = secret[32:]
            streams = [(-1 if j < i else 1, pair_stream(i, j)) for j in alive]
        for sign, stream in streams:
            total = [(w + sign * k) % 2**32 for w, k in zip(total, stream, strict=True)]
    return {"messages": said, "sum": (total[s["wide"] :], total[: s["wide"]])}


if __name__ == "__main__":
    fields = {
        "run": "reference", "round_number": 1, "model": b"m" * 32, "config": b"c" * 32,
        "roster": b"r" * 32, "threshold": 3, "degree": 0, "length": 4, "wide": 4, "bits": 32,
        "min_cohort": 5, "min_survivors": 3, "active": 1,
    }  # fmt: skip
    held = [([i, 10 * i, 2**32 - 1, 7], [1, 0, 0, 0]) for i in range(5)]
    played = transcript(
        fields, [bytes([i + 1]) * 32 for i in range(5)], [bytes([i + 9]) * 32 for i in range(5)],
        held, {3},
    )  # fmt: skip
    wanted = [sum(v[0][w] for i, v in enumerate(held) if i != 3) % 2**32 for w in range(4)]
    print("sum", played["sum"][0], "expected", wanted)
    raise SystemExit(played["sum"][0] != wanted)
