"""A server that SIGKILL ends at every point of a round, on real sockets, and its successors."""

from __future__ import annotations

import json
import multiprocessing
import signal

import pytest
from safetensors.numpy import load_file

from sequester.ledger import Ledger
from tests.federated.network.mortal import POINTS, SEALED, check_noise, deaths, live
from tests.federated.network.proxy import SocketNode
from tests.federated.network.silent import simulated
from tests.federated.network.world import SITES, make_nodes, make_study, write_sites


@pytest.fixture
def data(tmp_path):
    return write_sites(tmp_path / "data")


def there(server: int) -> int:
    """Sites that the server of this number finds: all, or all but one in turn."""
    return 3 - server % 2


def test_a_server_killed_at_any_point_of_a_round_goes_on_as_if_it_had_not_been(data, tmp_path):
    path = tmp_path / "run"
    nodes = {n: SocketNode(node) for n, node in make_nodes(data, tmp_path / "nodes").items()}
    ports = [(n, node.listener.port) for n, node in nodes.items()]
    fork = multiprocessing.get_context("forkserver")
    fork.set_forkserver_preload(["tests.federated.network.mortal"])
    try:
        for number in range(len(POINTS) + 1):
            server = fork.Process(target=live, args=(data, path, dict(ports[: there(number)])))
            server.start()
            server.join()
            last = number == len(POINTS)
            assert server.exitcode == (0 if last else -signal.SIGKILL)
            assert (path / "claim.json").exists() == last
    finally:
        for node in nodes.values():
            node.listener.close()
    assert deaths(tmp_path) == list(POINTS)
    check_noise(tmp_path)
    collected = [n if n >= SEALED else n + 1 for n in range(len(POINTS))]
    missing = {(n, 2) for n, server in enumerate(collected) if there(server) < 3}
    study = make_study(data, training={"steps": len(POINTS)})
    twin = simulated(study, tmp_path / "twin", missing).folder
    ours, theirs = load_file(path / "model.safetensors"), load_file(twin.weights)
    assert {k: v.tobytes() for k, v in ours.items()} == {k: v.tobytes() for k, v in theirs.items()}
    kept, told = (json.loads(file.read_text()) for file in (path / "claim.json", twin.claim))
    assert kept["epsilon"] == told["epsilon"]
    for site in SITES:
        with Ledger.open(f"sqlite:///{tmp_path / 'nodes' / site / 'ledger.db'}") as ledger:
            ledger.verify()
            assert ledger.budgets()[0].spent > 0
