"""Plant thirty-nine faults in the protocol, one at a time; the suite must notice each.

    python benchmarks/secagg/mutations.py            # all: about five minutes
    python benchmarks/secagg/mutations.py 3 7        # some

Each fault is planted in a copy of the package; the tests run against the copy and stop at the
first failure. The copy without a fault must pass first. Exit code 4 if one survives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOM = Path("src/sequester/secagg")

# (what a programmer might get wrong, file, the line as it is, the line with the fault)
MUTATIONS = [
    (
        "the pair's sign flipped",
        "client.py",
        "(plus if self.member < peer else minus)",
        "(plus if self.member > peer else plus)",
    ),
    (
        "the self-mask left out",
        "client.py",
        "plus = [self._context.self_key(self._seed, self.member)]",
        "plus = []",
    ),
    (
        "shares numbered from 0",
        "field.py",
        "points = np.arange(1, shares + 1, dtype=np.int64)",
        "points = np.arange(0, shares, dtype=np.int64)",
    ),
    (
        "one nonce for both directions",
        "crypto.py",
        'return bytes(11) + (b"\\x01" if upward else b"\\x02")',
        "return bytes(12)",
    ),
    (
        "parcels authenticate nothing beside them",
        "context.py",
        "return self.digest + id_bytes(sender, receiver) + checks",
        'return b""',
    ),
    (
        "a holder takes shares unlike the server's checks",
        "parcels.py",
        "return share if context.parcel_checks(dealer, holder, *checks) == parcel.checks else None",
        "return share",
    ),
    (
        "the server passes on no word of the checks it keeps",
        "parcels.py",
        "checks = context.parcel_checks(dealer, parcel.peer, parcel.seed_check, parcel.key_check)",
        "checks = bytes(16)",
    ),
    (
        "threshold one too low on the full graph",
        "graph.py",
        "threshold = (members + corrupt) // 2 + 1 if threats.active",
        "threshold = (members + corrupt) // 2 if threats.active",
    ),
    (
        "a client believes any threshold",
        "graph.py",
        "return threshold > corrupt and (not threats.active or 2 * threshold > members + corrupt)",
        "return True",
    ),
    (
        "16-bit words summed in 32 bits and not cut",
        "masks.py",
        "return np.uint16 if bits == 16 else np.uint32",
        "return np.uint32",
    ),
    (
        "keys do not depend on the round",
        "context.py",
        'return digest(b"cohort", self.session.digest, *rows)',
        'return digest(b"cohort", *rows)',
    ),
    (
        "the model is not in the session's bytes",
        "session.py",
        "out.raw(self.model).raw(self.config).raw(self.roster)",
        "out.raw(self.config).raw(self.config).raw(self.roster)",
    ),
    (
        "the mask of a dropped member stays",
        "opening.py",
        "(minus if other < member else plus).append(key)",
        "pass",
    ),
    (
        "dropped members' masks taken with the wrong sign",
        "opening.py",
        "(minus if other < member else plus).append(key)",
        "(plus if other < member else minus).append(key)",
    ),
    (
        "late vectors are added",
        "server.py",
        "if kind < self.phase and kind in set(Phase):",
        "if kind == 6 and self.phase > 6:\n            return self._take_masked(member, message)\n"
        "        if kind < self.phase and kind in set(Phase):",
    ),
    (
        "both kinds of share for a survivor",
        "client.py",
        "keys = tuple(Share(m, held[m][SHARE_BYTES:]) for m in self._dropped if m in held)",
        "keys = tuple(Share(m, held[m][SHARE_BYTES:]) for m in held)",
    ),
    (
        "secrets kept after the reveal",
        "client.py",
        "        self._held.clear()\n",
        "",
    ),
    (
        "confirmations counted, not checked",
        "client.py",
        "if crypto.same(given, self._tag(peer, sender=peer, receiver=self.member)):",
        "if given:",
    ),
    (
        "no confirmations needed",
        "client.py",
        "if agreeing < self.session.threshold:",
        "if agreeing < 0:",
    ),
    (
        "signatures not checked by the client",
        "client.py",
        "if checks and not crypto.is_signed(enrolled, keys.signature, signed):",
        "if False:",
    ),
    (
        "channels do not depend on the keys that were shown",
        "context.py",
        "shown = low.channel + low.mask + high.channel + high.mask",
        'shown = b""',
    ),
    (
        "the client's own nonce not looked for",
        "client.py",
        "if nonces.get(self.member) != self._nonce:",
        "if False:",
    ),
    (
        "a survivor's seed not compared with its commitment",
        "opening.py",
        "if self.context.commitment(seed, member) != self.dealt[member].commitment:",
        "if False:",
    ),
    (
        "revealed shares not compared with what was dealt",
        "opening.py",
        "if check != self._expected(kind, dealer, holder):",
        "if False:",
    ),
    (
        "a client said to have dropped still helps",
        "client.py",
        "if self.member not in surviving:",
        "if False:",
    ),
    (
        "the wrapped sum is not looked for",
        "encoding.py",
        "if _checksums(integers, rotation) != [int(word) for word in total.wide[CHECKS]]:",
        "if False:",
    ),
    (
        "the integers' norm is not checked",
        "encoding.py",
        "if _squared_norm(integers) <= bound**2:",
        "if True:",
    ),
    (
        "noise shares sized for everybody instead of the fewest",
        "plan.py",
        "share = noise_multiplier * clip / (step * math.sqrt(honest))",
        "share = noise_multiplier * clip / (step * math.sqrt(members))",
    ),
    (
        "the accountant counts corrupt members' noise",
        "plan.py",
        "honest = survivors - corrupt\n",
        "honest = survivors\n",
    ),
    (
        "corrupt members counted among those the server lists only",
        "policy.py",
        "session.active, self.corrupt_members)",
        "session.active)",
    ),
    (
        "the plan's threshold not pinned on the client",
        "policy.py",
        "if session.threshold < self.threshold or sparse or not safe:",
        "if sparse or not safe:",
    ),
    (
        "the plan's neighbours not pinned on the client",
        "policy.py",
        "if session.threshold < self.threshold or sparse or not safe:",
        "if session.threshold < self.threshold or not safe:",
    ),
    (
        "keys of low order taken by the server",
        "server.py",
        "if any(map(crypto.has_low_order, shown)):",
        "if False:",
    ),
    (
        "confirmations to strangers taken",
        "server.py",
        "if tuple(peer for peer, _ in confirm.tags) != self._surviving_peers(member):",
        "if False:",
    ),
    (
        "any shares taken for those that are due",
        "server.py",
        "if not self._is_due(member, reveal):",
        "if False:",
    ),
    (
        "one complaint believed",
        "faults.py",
        "if sum(one == accused for one, _ in self.disputes) > corrupt:",
        "if corrupt >= 0:",
    ),
    (
        "a spoilt parcel's dealer not named",
        "client.py",
        "self._doubts.add(parcel.peer)",
        "pass",
    ),
    (
        "the plan's fewest vectors not pinned on the client",
        "policy.py",
        "max(session.min_survivors, self.min_survivors, members - drops, 2)",
        "max(session.min_survivors, members - drops, 2)",
    ),
    (
        "identities of low order enrolled",
        "session.py",
        "if not all(map(can_be_enrolled, self.keys.values())):",
        "if any(len(key) != 32 for key in self.keys.values()):",
    ),
]


# Quick ones first; all but the test that looks at this file.
SUITE = (
    "transcripts", "updates", "attacks", "plan", "wire", "secrecy", "known_answers", "orders",
    "dropouts", "impersonation", "policy_pins", "blame",
)  # fmt: skip


def plant(number: int | None, folder: Path) -> None:
    """Copy the package and the tests, with one fault or none."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("secagg", "transcripts"):
        if (ROOT / "tests" / part).exists():
            shutil.copytree(ROOT / "tests" / part, folder / "tests" / part)
    for name_ in ("__init__.py", "shared.py"):
        shutil.copy(ROOT / "tests" / name_, folder / "tests" / name_)
    shutil.copytree(ROOT / "reference", folder / "reference")
    shutil.copy(ROOT / "pyproject.toml", folder)
    if number is None:
        return
    _, name, old, new = MUTATIONS[number]
    path = folder / ROOM / name
    text = path.read_text()
    if text.count(old) != 1:
        raise SystemExit(f"mutation {number}: its line occurs {text.count(old)} times in {name}")
    path.write_text(text.replace(old, new))


def survives(number: int | None) -> tuple[bool, str, float]:
    """Whether the suite passes over the fault; else the first test that noticed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plant(number, folder)
        start = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:randomly"]
        command += ["-p", "no:cacheprovider", *(f"tests/secagg/test_{name}.py" for name in SUITE)]
        paths = f"{folder / 'src'}{os.pathsep}{folder}"
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        last = done.stdout[-500:] + done.stderr[-500:]
        by = lines[0].split(" - ")[0].removeprefix("FAILED tests/secagg/") if lines else last
        return done.returncode == 0, by, time.monotonic() - start


def main() -> None:
    """Print the table."""
    chosen = [int(argument) for argument in sys.argv[1:]] or range(len(MUTATIONS))
    passes, by, _ = survives(None)
    if not passes:
        raise SystemExit(f"the suite fails without a fault: {by}")
    alive = 0
    for number in chosen:
        lives, by, seconds = survives(number)
        alive += lives
        verdict = "SURVIVES" if lives else "killed by"
        print(
            f"{number:2d}  {MUTATIONS[number][0]:55s} {verdict} {by} ({seconds:.0f} s)", flush=True
        )
    print(f"{len(chosen) - alive} of {len(chosen)} killed")
    if alive:
        raise SystemExit(4)


if __name__ == "__main__":
    main()
