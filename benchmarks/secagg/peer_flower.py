"""Flower's SecAgg+ by the same clock: its own client functions, its own server pieces.

Run in an environment that has `flwr` (1.42 was measured); prints one JSON object per line.

    <environment with flwr>/bin/python benchmarks/secagg/peer_flower.py 50 49 27 100000

A client is measured whole: `_setup`, `_share_keys`, `_collect_masked_vectors`, `_unmask` of one
member whose neighbours' messages are real. The server is composed of its pieces (combining a
secret, one mask, one key agreement) times their numbers, because running it whole takes up to
an hour; the composition was within 5 % of the real workflow where both were run.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import flwr.client.mod.secure_aggregation.secaggplus_mod  # noqa: F401
import numpy as np
from flwr.app import ConfigRecord
from flwr.common import bytes_to_ndarray, ndarray_to_bytes, ndarrays_to_parameters

mod = sys.modules["flwr.client.mod.secure_aggregation.secaggplus_mod"]
Key = mod.Key
MODULUS = 1 << 32


def clock(function, repeats: int = 3) -> float:
    """The smallest CPU time of some runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def client_seconds(neighbours: int, threshold: int, length: int) -> tuple[float, int, bytes]:
    """(CPU seconds of one client, bytes it sends, its private key)."""
    count = neighbours + 1
    parameters = {
        Key.SAMPLE_NUMBER: count, Key.SHARE_NUMBER: count, Key.THRESHOLD: threshold,
        Key.CLIPPING_RANGE: 8.0, Key.TARGET_RANGE: 1 << 22, Key.MOD_RANGE: MODULUS,
        Key.MAX_WEIGHT: 1000.0,
    }  # fmt: skip
    me = mod.SecAggPlusState()
    me.nid = 1
    others = {}
    for nid in range(2, count + 1):
        others[nid] = mod.SecAggPlusState()
        others[nid].nid = nid
        mod._setup(others[nid], ConfigRecord(dict(parameters)))
    start = time.process_time()
    first = mod._setup(me, ConfigRecord(dict(parameters)))
    spent = time.process_time() - start
    keys = {"1": [me.pk1, me.pk2]} | {str(n): [s.pk1, s.pk2] for n, s in others.items()}
    start = time.process_time()
    second = mod._share_keys(me, keys)
    spent += time.process_time() - start
    seed_share, key_share = me.rd_seed_share_dict[1], me.sk1_share_dict[1]
    parcels = []
    for nid, state in others.items():
        # The neighbour's parcel, without the seconds it spends on sharing with all of its own.
        shared = mod.generate_shared_key(
            mod.bytes_to_private_key(state.sk2), mod.bytes_to_public_key(me.pk2)
        )
        plain = mod.share_keys_plaintext_concat(nid, 1, seed_share, key_share)
        parcels.append(mod.encrypt(shared, plain))
    vector = ndarrays_to_parameters([np.full(length, 0.5, np.float32)])
    inbox = {Key.CIPHERTEXT_LIST: parcels, Key.SOURCE_LIST: list(others)}
    start = time.process_time()
    third = mod._collect_masked_vectors(me, inbox, 500, vector)
    spent += time.process_time() - start
    request = {Key.ACTIVE_NODE_ID_LIST: [1, *others], Key.DEAD_NODE_ID_LIST: []}
    start = time.process_time()
    fourth = mod._unmask(me, request)
    spent += time.process_time() - start
    sent = sum(len(first[k]) for k in (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2))
    sent += sum(map(len, second[Key.CIPHERTEXT_LIST])) + 8 * len(second[Key.DESTINATION_LIST])
    sent += sum(map(len, third[Key.MASKED_PARAMETERS])) + sum(map(len, fourth[Key.SHARE_LIST]))
    return spent, sent, me.sk1


def server_seconds(members: int, neighbours: int, threshold: int, length: int, sk: bytes) -> dict:
    """Dropout → CPU seconds, from pieces."""
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares

    count = neighbours + 1
    # The pieces that do not depend on the secret's content are measured on its real length.
    seeds = create_shares(os.urandom(32), threshold, count)
    keys = create_shares(sk, threshold, count)
    shape = [(length,)]
    mask = clock(lambda: mod.pseudo_rand_gen(b"x" * 32, MODULUS, shape))
    total = [np.zeros(length, np.int64)]
    other = [np.ones(length, np.int64)]
    add = clock(lambda: mod.parameters_addition(total, other))
    packed = ndarray_to_bytes(total[0])
    unpack = clock(lambda: bytes_to_ndarray(packed))
    private, public = mod.generate_key_pairs()
    agree = clock(lambda: mod.generate_shared_key(private, public))
    out = {}
    for dropout in (0.0, 0.1, 0.3):
        dropped = round(dropout * members)
        alive = members - dropped
        shares = max(threshold, round(count * alive / members))
        open_seed = clock(lambda s=shares: combine_shares(seeds[:s]), 1)
        open_key = clock(lambda s=shares: combine_shares(keys[:s]), 1)
        seconds = alive * (open_seed + mask + 2 * add + unpack)
        # It removes a dropped member's mask with every neighbour, alive or not.
        seconds += dropped * (open_key + neighbours * (agree + mask + add))
        out[str(dropout)] = seconds
    return out


def main() -> None:
    """Measure one line."""
    sizes = [int(argument) for argument in sys.argv[1:5]]
    members, neighbours, threshold, length = sizes
    client, sent, sk = client_seconds(neighbours, threshold, length)
    server = server_seconds(members, neighbours, threshold, length, sk)
    line = dict(zip(("members", "neighbours", "threshold", "length"), sizes, strict=True))
    print(json.dumps(line | {"client": client, "sent": sent, "server": server}))


if __name__ == "__main__":
    main()
