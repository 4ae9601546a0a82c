"""The first question: one answer whatever the records are, and broken registers are heard of."""

from __future__ import annotations

import gzip

import pytest

from sequester.federated.network.frames import Enrolled, Refused, Willing
from sequester.federated.network.node import Node
from tests.federated.network.asking import ask_node, enrol_of, node_at, spent
from tests.federated.network.world import make_study, write_sites

BOUNDS = {"lower": -4.0, "upper": 4.0}
RECORDS = {
    "as they are": lambda text: text,
    "a short row": lambda text: text + b"a000,7\n",
    "a short row first": lambda text: text.replace(b"\n", b"\na000,7\n", 1),
    "nobody": lambda text: text.split(b"\n")[0] + b"\n",
    "no line's end": lambda text: text.split(b"\n")[0],
    "another encoding": lambda text: text + b"a000,7,a,\xff\xfe,1\n",
    "a huge field": lambda text: text + b"a000,7,a," + b"9" * 3_000_000 + b",1\n",
    "an open quote": lambda text: text + b'a000,7,a,"1.0,1\n',
    "a nought": lambda text: text + b"a000,7,a,1\x00,1\n",
}
STUDIES = {
    "it fits": ({}, "", Willing),
    "a column is missing": ({"features": {"valeu": BOUNDS}}, "'valeu'", Refused),
}
FORMS = {
    "commas": (lambda text: text, "people.csv", ""),
    "semicolons": (lambda text: text.replace(b",", b";"), "people.csv", 'delimiter = ";"'),
    "packed": (gzip.compress, "people.csv.gz", ""),
    "a mark": (lambda text: b"\xef\xbb\xbf" + text, "people.csv", 'encoding = "utf-8-sig"'),
}


@pytest.fixture
def data(tmp_path):
    return write_sites(tmp_path / "data", people=10)


@pytest.mark.parametrize("kind", STUDIES)
@pytest.mark.parametrize("records", RECORDS)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_told_for_nothing_is_the_same_whatever_the_records_are(
    form, records, kind, data, tmp_path
):
    change, why, answer = STUDIES[kind]
    write, name, layout = FORMS[form]
    text = (data / "a" / "people.csv").read_bytes()
    file = data / "a" / name
    file.write_bytes(write(RECORDS[records](text)))
    if layout:
        (data / "a" / "reading.toml").write_text(f"[layout]\n{layout}\n")
    node = Node("a", file, tmp_path / "node")
    header, _ = ask_node(node, enrol_of(make_study(data, data=change), hold=False))
    assert isinstance(header, answer), header
    assert why in getattr(header, "message", "")


REGISTERS = {
    "in order": ("0" * 32 + "\n", b"k" * 32, 0o600, True),
    "empty": ("", b"k" * 32, 0o600, True),
    "no register": (None, b"k" * 32, 0o600, False),
    "a line that is no hash": ("somebody\n", b"k" * 32, 0o600, False),
    "no key": ("", None, 0o600, False),
    "a short key": ("", b"k", 0o600, False),
    "a key open to others": ("", b"k" * 32, 0o644, False),
}


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("kind", REGISTERS)
def test_a_register_that_cannot_be_read_is_said_before_any_charge(kind, hold, data, tmp_path):
    text, key, mode, good = REGISTERS[kind]
    node = node_at(data, tmp_path)
    node.erased, node.erased_key = str(tmp_path / "erased"), str(tmp_path / "erased.key")
    if text is not None:
        (tmp_path / "erased").write_text(text)
    if key is not None:
        (tmp_path / "erased.key").write_bytes(key)
        (tmp_path / "erased.key").chmod(mode)
    header, _ = ask_node(node, enrol_of(make_study(data), hold=hold))
    if good:
        assert isinstance(header, Enrolled if hold else Willing)
        return
    assert header.code == 653
    assert "register" in header.message
    assert str(tmp_path) not in header.message
    assert spent(node.folder) == 0
