"""Secure aggregation in one file: what `sequester.secagg` says on the wire, and why it works.

The server learns the sum of the vectors of members who stay and nothing else. Neighbours (i, j)
agree on a key by Diffie-Hellman; i adds its keystream to its vector and j takes it away, so they
cancel. Against a vector that arrives late each member adds a keystream of its own seed. Seed and
key are secret-shared among neighbours, who then reveal a member's seed (if its vector arrived) or
key (if not), never both, and only once they confirmed the survivors to one another. Everybody is
honest here. Follows `docs/secagg-spec.md`, makes the bytes of `tests/transcripts`; to be read.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

LABEL = b"sequester secagg v4 "
P = 65537


def u32(*numbers: int) -> bytes:
    """Four bytes each."""
    return struct.pack(f"<{len(numbers)}I", *numbers)


def digest(label: bytes, *parts: bytes) -> bytes:
    """SHA-256 for one purpose."""
    return hashlib.sha256(LABEL + label + b"\0" + b"".join(parts)).digest()


def derive(secret: bytes, label: bytes, context: bytes, count: int = 32) -> bytes:
    """HKDF-SHA256 with an empty salt, from RFC 5869."""
    prk, info, out = hmac.digest(bytes(32), secret, "sha256"), LABEL + label + b"\0" + context, b""
    for number in range(1, -(-count // 32) + 1):
        out += hmac.digest(prk, out[-32:] + info + bytes([number]), "sha256")
    return out[:count]


def counter_mode(key: bytes, count: int, first: int) -> bytes:
    """AES in counter mode from block `first`."""
    mode = modes.CTR(first.to_bytes(16, "big"))
    return Cipher(algorithms.AES(key), mode).encryptor().update(bytes(count))


def listed(rows: list[bytes]) -> bytes:
    """How many, then all of them."""
    return u32(len(rows)) + b"".join(rows)


def x25519(private: bytes, point: bytes = bytes([9]) + bytes(31)) -> bytes:
    """The shared secret with a public key; with the base point, the own public key."""
    peer = X25519PublicKey.from_public_bytes(point)
    return X25519PrivateKey.from_private_bytes(private).exchange(peer)


def share(secret: bytes, n: int, t: int, key: bytes) -> list[list[int]]:
    """Shamir over GF(65537), one polynomial per 16-bit word; the randomness comes from `key`."""
    words = struct.unpack(f"<{len(secret) // 2}H", secret)
    block_key = hashlib.blake2b(b"0:|13:secagg shares|0|0", key=key, digest_size=32).digest()
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
        others = [other for other in points if other != x]
        weight = math.prod(other * pow(other - x, -1, P) for other in others)
        out = [(o + weight * y) % P for o, y in zip(out, row, strict=True)]
    return struct.pack(f"<{len(out)}H", *out)


def share_bytes(row: list[int]) -> bytes:
    """Low 16 bits of each word, then one bit each for the value 65536."""
    high = sum((v >> 16) << i for i, v in enumerate(row)).to_bytes(2, "little")
    return struct.pack(f"<{len(row)}H", *(v & 0xFFFF for v in row)) + high


def share_words(data: bytes) -> list[int]:
    """The inverse."""
    low, high = struct.unpack("<16H", data[:32]), int.from_bytes(data[32:], "little")
    return [v + ((high >> i & 1) << 16) for i, v in enumerate(low)]


def packed(words: list[int], bits: int) -> bytes:
    """Words of `bits` bits, the first lowest."""
    whole = sum(word << bits * place for place, word in enumerate(words))
    return whole.to_bytes((len(words) * bits + 7) // 8, "little")


PHASES = ("advert", "shares", "masked", "confirm", "reveal")


def transcript(s: dict, identities: list[bytes], secrets: list[bytes], vectors, drops) -> dict:
    """Play one round: every message by name, and the sum of (narrow, wide) `vectors`.

    `drops` maps a member to the phase in which it falls silent.
    """
    t, bits, width, name = s["threshold"], s["bits"], s["wide"], s["run"].encode()
    lasts = [PHASES.index(drops[i]) if i in drops else 9 for i in range(len(secrets))]
    joined, dealt, alive, confirming, last = (
        [i for i in range(len(secrets)) if lasts[i] > phase] for phase in range(5)
    )
    encoded = bytes([len(name)]) + name + struct.pack("<Q", s["round_number"])
    encoded += s["model"] + s["config"] + s["roster"]
    encoded += struct.pack("<HHIHB", *map(s.get, ("threshold", "degree", "length", "wide", "bits")))
    encoded += u32(s["min_cohort"], s["min_survivors"]) + bytes([s["active"]])
    session = digest(b"session", encoded)
    said = {"offer": b"SQSA" + bytes([4, 1]) + bytes(16) + encoded}

    def say(kind: int, name: str, body: bytes) -> None:
        said[name] = b"SQSA" + bytes([4, kind]) + session[:16] + body

    # 1. Fresh keys and a nonce, signed; every member checks its neighbours' signatures.
    channel = [derive(x, b"channel key", session) for x in secrets]
    mask = [derive(x, b"mask key", session) for x in secrets]
    nonce = [derive(x, b"nonce", session, 4) for x in secrets]
    shown = [x25519(a) + x25519(b) for a, b in zip(channel, mask, strict=True)]
    signature = {}
    for i in joined:
        signed = LABEL + b"advert\0" + session + u32(i) + shown[i] + nonce[i]
        key = Ed25519PrivateKey.from_private_bytes(identities[i])
        signature[i] = key.sign(signed) if s["active"] else bytes(64)
        say(2, f"advert {i}", u32(i) + shown[i] + signature[i] + nonce[i])
    entries = [u32(i) + nonce[i] for i in joined]
    cohort = digest(b"cohort", session, *entries)
    ring = sorted(joined, key=lambda i: hashlib.sha256(cohort + u32(i)).digest())
    half = s["degree"] // 2
    near = {i: [j for j in joined if j != i] for i in joined}
    if half:  # The `half` before and the `half` behind on the ring.
        twice = {i: (ring * 3)[len(ring) + at - half :] for at, i in enumerate(ring)}
        near = {i: sorted({*twice[i][:half], *twice[i][half + 1 : 2 * half + 1]}) for i in joined}
    holders = near if half else {i: joined for i in joined}
    for i in joined:
        others = [u32(j) + shown[j] + signature[j] for j in near[i]]
        say(3, f"peers {i}", listed(entries) + listed(others))

    # 2. Seed and key, shared among the holders under pairwise keys.
    def pair(i: int, j: int) -> bytes:
        return cohort + u32(min(i, j), max(i, j))

    def channel_keys(i: int, j: int) -> bytes:
        secret = x25519(channel[i], x25519(channel[j]))
        return derive(secret, b"channel", pair(i, j) + shown[min(i, j)] + shown[max(i, j)], 64)

    seed, share_of, parcel = [derive(x, b"self mask", cohort) for x in secrets], {}, {}
    for i in dealt:
        key = derive(secrets[i], b"shares", cohort)
        rows, own = share(seed[i] + mask[i], len(holders[i]), t, key), bytes(16)
        for j, row in zip(holders[i], rows, strict=True):
            share_of[i, j] = two = [share_bytes(row[:16]), share_bytes(row[16:])]
            checks = [digest(b"share", cohort, bytes([k]), u32(i, j), two[k])[:16] for k in (0, 1)]
            if i == j:  # The one for itself stays at home.
                own = checks[0]
                continue
            nonce_ = bytes(11) + (b"\1" if i < j else b"\2")
            beside = cohort + u32(i, j) + b"".join(checks)
            sealed = AESGCM(channel_keys(i, j)[:32]).encrypt(nonce_, b"".join(two), beside)
            parcel[i, j] = b"".join(checks) + sealed
        mine = [u32(j) + parcel[i, j] for j in near[i]]
        commitment = digest(b"commitment", cohort, u32(i), seed[i])
        say(4, f"shares {i}", u32(i) + commitment + own + listed(mine))
    for i in dealt:
        say(5, f"sealed {i}", listed([u32(j) + parcel[j, i] for j in near[i] if j in dealt]))

    # 3. Masked vectors: + own seed, + keys of higher members, − keys of lower ones.
    def mixed(words: list[int], streams: list[tuple[int, bytes]]) -> list[int]:
        form = f"<{width}I{s['length']}{'H' if bits == 16 else 'I'}"
        for sign, key in streams:
            stream = struct.unpack(form, counter_mode(key, struct.calcsize(form), 2))
            words = [w + sign * k for w, k in zip(words, stream, strict=True)]
        return [w % 2**32 for w in words[:width]] + [w % 2**bits for w in words[width:]]

    def pair_key(private: bytes, i: int, j: int) -> bytes:
        return derive(x25519(private, x25519(mask[j])), b"pair mask", pair(i, j), 16)

    total = [0] * (width + s["length"])
    for i in alive:
        streams = [(1, derive(seed[i], b"self mask", cohort + u32(i), 16))]
        streams += [(1 if i < j else -1, pair_key(mask[i], i, j)) for j in near[i] if j in dealt]
        words = mixed(vectors[i][1] + vectors[i][0], streams)
        total = [a + b for a, b in zip(total, words, strict=True)]
        say(6, f"masked {i}", u32(i) + packed(words[width:], bits) + u32(*words[:width]))

    # 4. Everybody confirms the survivors to its neighbours, unless the server is trusted to tell.
    survivors = packed([i in alive for i in joined], 1)
    say(7, "survivors", u32(len(survivors)) + survivors)

    def tag(i: int, j: int) -> bytes:
        text = b"confirm\0" + digest(b"survivors", cohort, survivors) + u32(i, j)
        return hmac.digest(channel_keys(i, j)[32:], text, "sha256")[:16]

    for i in confirming if s["active"] else []:
        tags = [u32(j) + tag(i, j) for j in near[i] if j in alive]
        say(8, f"confirm {i}", u32(i) + listed(tags))
        tags = [u32(j) + tag(j, i) for j in near[i] if j in confirming]
        say(9, f"confirmed {i}", listed(tags))

    # 5. One kind of share for each member; the server opens and takes the masks off.
    for i in last:
        held = [j for j in dealt if (j, i) in share_of]
        seeds = [u32(j) + share_of[j, i][0] for j in held if j in alive]
        keys = [u32(j) + share_of[j, i][1] for j in held if j not in alive]
        say(10, f"reveal {i}", u32(i) + listed(seeds) + listed(keys) + listed([]))
    for i in dealt:
        kind, found = int(i not in alive), {}
        for x, j in enumerate(holders[i], start=1):
            if j in last and len(found) < t:
                found[x] = share_words(share_of[i, j][kind])
        opened = recover(list(found), list(found.values()))
        if i in alive:
            total = mixed(total, [(-1, derive(opened, b"self mask", cohort + u32(i), 16))])
        else:  # Survivor j holds ± the stream of the pair (j, i).
            left = [j for j in near[i] if j in alive]
            total = mixed(total, [(-1 if j < i else 1, pair_key(opened, i, j)) for j in left])
    return {"messages": said, "sum": (total[width:], total[:width])}


if __name__ == "__main__":
    fields = dict.fromkeys(("model", "config", "roster"), bytes(32)) | {"run": "reference"}
    fields |= dict(zip(("degree", "active", "threshold", "length"), (0, 1, 3, 4), strict=True))
    fields |= {"round_number": 1, "wide": 4, "bits": 32, "min_cohort": 5, "min_survivors": 3}
    held = [([i, 10 * i, 2**32 - 1, 7], [1, 0, 0, 0]) for i in range(5)]
    keys = [bytes([i + 1]) * 32 for i in range(5)]
    found = transcript(fields, keys, keys[::-1], held, {3: "masked"})["sum"][0]
    wanted = [sum(v[0][w] for i, v in enumerate(held) if i != 3) % 2**32 for w in range(4)]
    raise SystemExit(print("sum", found, "expected", wanted) or found != wanted)
