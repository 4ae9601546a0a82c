"""Certificates, keys and clocks that must be refused: `python -m benchmarks.federated.network.tls`.

Real SuperLinks and SuperNodes on the loopback. For each case: whether the node became known to the
server, and what the node's own log gave as the reason. Exits with 1 if anything that must be
refused was let in or was refused in other words than `docs/flower.md` has, or the good node was not
let in.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.federated.flower import randhie
from tests.federated.flower.deployment import Deployment

PATIENCE_S = 240.0
"""For a node to be let in, or to say why not, on a machine with much else to do."""
SKEWED = """
import datetime

import flwr.supercore.date as date

real = date.now
date.now = lambda: real() + datetime.timedelta(seconds={seconds})
"""


def authority(folder: Path, name: str):
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=30))
        .not_valid_after(now + dt.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.crt"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return key, certificate, path


def server(folder: Path, name: str, signer, *, days: int, host: str = "127.0.0.1"):
    """A server's key and certificate, good for `days` from now (negative: it is over)."""
    ca_key, ca, _ = signer
    key = ec.generate_private_key(ec.SECP384R1())
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=20))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]),
            critical=False,
        )
        .sign(ca_key, hashes.SHA256())
    )
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


def node_key(folder: Path, name: str) -> Path:
    key = ec.generate_private_key(ec.SECP384R1())
    path = folder / name
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    path.with_suffix(".pub").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    return path


def link_options(ca: Path, pair) -> tuple[str, ...]:
    return (
        "--ssl-ca-certfile",
        str(ca),
        "--ssl-certfile",
        str(pair[0]),
        "--ssl-keyfile",
        str(pair[1]),
        "--enable-supernode-auth",
    )


def activated(flower: Deployment) -> int:
    """Nodes that the server let in, by its own access log."""
    return len(re.findall(r"activate-node HTTP/1.1\" 200", flower.log("link")))


def attempt(flower: Deployment, data: Path, case: str, options, words: str) -> tuple[bool, str]:
    """Start a node with these options; whether it was let in, and its line with `words` if not."""
    before = activated(flower)
    flower.node_options = options
    name = "node-" + re.sub(r"\W", "-", case)
    flower.node(name.removeprefix("node-"), data)
    end, told = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < end and activated(flower) == before and not told:
        time.sleep(0.2)
        lines = flower.log(name).splitlines()
        told = next((line.strip() for line in lines if words and re.search(words, line)), "")
    inside = activated(flower) > before
    flower.kill(name)
    return inside, told[:160]


def skewed(folder: Path, seconds: int) -> dict[str, str]:
    """Environment in which Flower's clock is wrong by so much."""
    place = folder / f"clock{seconds}"
    place.mkdir()
    (place / "sitecustomize.py").write_text(SKEWED.format(seconds=seconds))
    return {"PYTHONPATH": os.pathsep.join([str(place), *filter(None, [os.getenv("PYTHONPATH")])])}


def main() -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        site = randhie.write_sites(folder / "data", 1)[0]
        data = folder / "data" / site / "people.csv"
        good, other = authority(folder, "good"), authority(folder, "other")
        known, unknown = node_key(folder, "known"), node_key(folder, "unknown")
        roots, key = ("--root-certificates",), ("--auth-supernode-private-key",)
        fits = (*roots, str(good[2]), *key, str(known))
        refused, wrong_key = r"code: 2001", r"code: 2004"
        no_trust = "unable to get local issuer certificate|self-signed certificate in"
        first = {
            "a key that is not registered": ((*roots, str(good[2]), *key, str(unknown)), wrong_key),
            "no key": ((*roots, str(good[2])), refused),
            "another authority": ((*roots, str(other[2]), *key, str(known)), no_trust),
            "no authority": ((*key, str(known)), no_trust),
            "no TLS": (("--insecure",), "Connection attempt failed, retrying"),
            "a clock 10 s ahead": (fits, "SuperNode terminated gracefully"),
            "a clock 400 s behind": (fits, "SuperNode terminated gracefully"),
            "certificate and key": (fits, ""),
        }
        expired = {"an expired certificate": (fits, "certificate has expired")}
        elsewhere = {"another host's certificate": (fits, "address mismatch|Hostname mismatch")}
        links = {
            "valid": (server(folder, "valid", good, days=20), first),
            "expired": (server(folder, "expired", good, days=-1), expired),
            "elsewhere": (server(folder, "elsewhere", good, days=20, host="192.0.2.1"), elsewhere),
        }
        clocks = {"a clock 10 s ahead": 10, "a clock 400 s behind": -400}
        for kind, (pair, cases) in links.items():
            place = folder / kind
            place.mkdir()
            connection = f'root-certificates = "{good[2]}"'
            with Deployment(place, link_options(good[2], pair), (), connection) as flower:
                flower.link()
                if kind == "valid":
                    done = flower.flwr("supernode", "register", str(known) + ".pub", "here")
                    print(f"register: {done.returncode} {done.stdout.strip()[-80:]}")
                for case, (options, words) in cases.items():
                    flower.more = skewed(place, clocks[case]) if case in clocks else {}
                    inside, told = attempt(flower, data, case, options, words)
                    wrong += inside if words else not inside
                    wrong += bool(words) and not told
                    print(f"{case:30} {'let in' if inside else 'refused'}  {told}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
