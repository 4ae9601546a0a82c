"""Statements, calibration, persons, filters and the commands, as a user meets them."""

import itertools
import json
import math
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner

from sequester import accounting as acc
from sequester.accounting import calibrate, group, matrix, picture
from sequester.accounting.explain import sentences
from sequester.cli import calibrate as calibrate_verb
from sequester.cli import epsilon as epsilon_verb
from sequester.cli import explain as explain_verb
from sequester.core.errors import UsageError


def run(noise: float, rate: float, steps: int) -> acc.Event:
    return acc.SelfComposed(acc.PoissonSampled(rate, acc.Gaussian(noise)), steps)


def test_statement_of_a_gaussian_is_exact() -> None:
    from scipy.stats import norm

    said = acc.statement(acc.Gaussian(1.0), 1e-5)
    assert said.accountant == "gaussian"
    assert said.mu == 1.0
    assert said.advantage == pytest.approx(2 * norm.cdf(0.5) - 1, rel=1e-9)
    for fpr in (1e-6, 1e-3, 0.1, 0.5):
        exact = norm.cdf(norm.ppf(fpr) + 1.0)
        assert exact <= said.tpr_at_fpr(fpr) <= exact * 1.002
    assert said.posterior(0.5) == pytest.approx(1 / (1 + math.exp(-said.epsilon)))
    assert said.posterior(0.0) == 0.0
    assert 0.5 < said.posterior_if_flagged(0.5, 0.1) < said.posterior(0.5)


def test_mu_of_the_curve_covers_the_curve() -> None:
    said = acc.statement(run(1.0, 0.02, 200), 1e-6)
    from sequester.accounting import gaussian

    for epsilon in np.linspace(0.0, said.epsilon, 37):
        assert gaussian.delta(float(epsilon), said.mu) >= said.curve.delta(float(epsilon)) * 0.999


def test_calibration_stays_on_the_safe_side() -> None:
    for target, rate, steps in [(0.5, 0.02, 200), (4.0, 0.1, 100)]:
        noise = calibrate.noise_multiplier(target, 1e-6, rate, steps)
        assert acc.epsilon(run(noise, rate, steps), 1e-6) <= target
        assert acc.epsilon(run(noise * (1 - 4e-4), rate, steps), 1e-6) > target
    count = calibrate.steps(2.0, 1e-6, 0.02, 1.0)
    assert acc.epsilon(run(1.0, 0.02, count), 1e-6) <= 2.0
    assert acc.epsilon(run(1.0, 0.02, count + max(1, count // 500)), 1e-6) > 2.0
    rate = calibrate.sampling_rate(2.0, 1e-6, 1.0, 300)
    assert acc.epsilon(run(1.0, rate, 300), 1e-6) <= 2.0
    assert acc.epsilon(run(1.0, rate * (1 + 4e-4), 300), 1e-6) > 2.0
    with pytest.raises(UsageError, match="SQ-215"):
        calibrate.steps(0.01, 1e-6, 1.0, 1.0)
    with pytest.raises(UsageError, match="SQ-202"):
        calibrate.noise_multiplier(-1.0, 1e-6, 0.1, 10)


def test_person_with_several_records() -> None:
    event = run(1.3, 0.05, 50)
    one, two, many = (group.person(event, 1e-6, k) for k in (1, 2, 6))
    assert (one.method, two.method) == ("same", "mixture")
    assert one.epsilon < two.epsilon < many.epsilon
    # The exact mixture is below the group lemma, which is below k times the naive value.
    full = acc.Gaussian(2.0)
    exact = group.person_epsilon(full, 1e-6, 2)
    assert exact < group._group_lemma(full, 1e-6, 2, "add-or-remove")
    lemma = group.person(acc.ApproximateDP(1.0, 1e-9), 1e-6, 3)
    assert lemma.method == "group lemma"
    assert lemma.epsilon == pytest.approx(3.0, abs=0.02)
    none = group.person(acc.ApproximateDP(1.0, 1e-3), 1e-6, 3)
    assert none.method == "none"
    assert math.isinf(none.epsilon)


def test_filter_stops_in_time_and_is_order_bound() -> None:
    step = acc.PoissonSampled(0.02, acc.Gaussian(1.0))
    plan = acc.SelfComposed(step, 300)
    order = acc.order_for(plan, 1e-6)
    ceiling = acc.epsilon(plan, 1e-6, accountant="rdp")
    gate = acc.Filter(ceiling * (1 + 1e-6), 1e-6, order)
    assert gate.fits(step) == 300
    for part in (acc.SelfComposed(step, 100), acc.SelfComposed(step, 200)):
        assert gate.admits(part)
        gate.charge(part)
    assert not gate.admits(step)
    spent = gate.spent
    with pytest.raises(UsageError, match="SQ-217"):
        gate.charge(step)
    assert gate.spent == spent
    assert gate.spent_epsilon <= gate.epsilon
    with pytest.raises(UsageError, match="SQ-211"):
        gate.charge(acc.ApproximateDP(0.1, 1e-9))


def test_gaussian_filter_is_exact() -> None:
    gate = acc.Filter(acc.epsilon(acc.Gaussian(1.0), 1e-6) * (1 + 1e-9), 1e-6, None)
    assert gate.fits(acc.Gaussian(10.0)) == 100
    with pytest.raises(UsageError, match="SQ-211"):
        gate.admits(acc.PoissonSampled(0.1, acc.Gaussian(1.0)))


def test_odometer_reads_more_than_a_fixed_plan_and_grows() -> None:
    meter, step = acc.Odometer(1e-6), run(1.0, 0.02, 50)
    assert meter.reading == 0.0
    readings = []
    for _ in range(4):
        meter.charge(step)
        readings.append(meter.reading)
    assert readings == sorted(readings)
    assert readings[-1] > acc.epsilon(run(1.0, 0.02, 200), 1e-6, accountant="rdp")


def test_sensitivities_by_brute_force() -> None:
    from itertools import combinations

    rng = np.random.default_rng(5)
    for steps, k, apart in [(8, 1, 1), (8, 2, 3), (9, 3, 2), (7, 4, 1)]:
        falling = np.sort(rng.random(steps))[::-1]
        dense = sum(np.diag(np.full(steps - j, falling[j]), -j) for j in range(steps))
        patterns = [
            chosen
            for size in range(1, k + 1)
            for chosen in combinations(range(steps), size)
            if all(b - a >= apart for a, b in itertools.pairwise(chosen))
        ]
        exact = max(np.linalg.norm(dense[:, chosen].sum(axis=1)) for chosen in patterns)
        closed = matrix.toeplitz_sensitivity(falling, participations=k, separation=apart)
        assert closed == pytest.approx(exact, rel=1e-9)
        upper = matrix.matrix_sensitivity(dense, participations=k, separation=apart)
        assert exact * (1 - 1e-9) <= upper <= 1.5 * exact
        signed = dense * rng.choice([-1.0, 1.0], dense.shape)
        worst = max(
            np.linalg.norm(signed[:, chosen] @ signs)
            for chosen in patterns
            for signs in np.array(np.meshgrid(*[[-1, 1]] * len(chosen))).T.reshape(-1, len(chosen))
        )
        assert worst <= matrix.matrix_sensitivity(signed, participations=k, separation=apart) + 1e-9
    with pytest.raises(UsageError, match="SQ-219"):
        matrix.toeplitz_sensitivity(np.array([1.0, 2.0]))


def test_tree_sensitivity_by_brute_force() -> None:
    from itertools import combinations

    for leaves, k, apart in [(8, 1, 1), (8, 2, 1), (8, 2, 4), (16, 3, 2), (16, 4, 4)]:
        worst = 0.0
        for chosen in combinations(range(leaves), k):
            if any(b - a < apart for a, b in itertools.pairwise(chosen)):
                continue
            counts: dict[tuple[int, int], int] = {}
            for leaf in chosen:
                for level in range(leaves.bit_length()):
                    node = (level, leaf >> level)
                    counts[node] = counts.get(node, 0) + 1
            worst = max(worst, math.sqrt(sum(n * n for n in counts.values())))
        assert worst - 1e-12 <= matrix.tree_sensitivity(leaves, k, apart) <= 1.3 * worst


def test_explanation_says_what_the_numbers_say() -> None:
    said = acc.statement(run(1.0, 0.02, 200), 1e-6)
    text = " ".join(sentences(said, unit="person"))
    assert "with or without one person" in text
    assert "anonymous" not in text
    assert "infinite" in " ".join(sentences(acc.statement(acc.Gaussian(0.0), 1e-6)))
    drawing = picture.svg(said.curve, title="a < b")
    assert "a &lt; b" in drawing
    assert "http" not in drawing.replace("http://www.w3.org/2000/svg", "")
    import xml.etree.ElementTree as tree

    tree.fromstring(drawing)
    assert picture.braille(said.curve).count("\n") > 10


ARGUMENTS = ["--noise-multiplier", "1.1", "--sampling-rate", "0.05", "--steps", "50"]


def test_commands(tmp_path) -> None:
    runner = CliRunner()
    done = runner.invoke(
        epsilon_verb.command,
        [*ARGUMENTS, "--delta", "1e-5", "--max-per-person", "2", "--json"],
        catch_exceptions=False,
    )
    fields = json.loads(done.output)
    assert {"epsilon", "accountant", "epsilon_rdp", "mu", "advantage", "person"} <= set(fields)
    assert fields["epsilon"] < fields["person"]["epsilon"]
    for few in ("0", "-3"):
        done = runner.invoke(
            epsilon_verb.command, [*ARGUMENTS, "--delta", "1e-5", "--max-per-person", few]
        )
        assert done.exit_code == 2
    arguments = ["--epsilon", "2", "--delta", "1e-5", "--sampling-rate", "0.05", "--steps", "50"]
    done = runner.invoke(calibrate_verb.command, [*arguments, "--json"], catch_exceptions=False)
    fields = json.loads(done.output)
    assert fields["epsilon"] <= 2.0
    assert fields["noise_multiplier"] > 0.5
    target = tmp_path / "curve.svg"
    done = runner.invoke(
        explain_verb.command,
        [*ARGUMENTS, "--delta", "1e-5", "--svg", str(target)],
        catch_exceptions=False,
    )
    assert "with or without one person" in done.output
    assert target.read_text().startswith("<svg")
    claim = {
        "events": json.loads(acc.to_json(run(1.1, 0.05, 50))),
        "delta": 1e-5,
        "adjacency": "add-or-remove",
        "unit": "person",
        "status": "private",
    }
    (tmp_path / "claim.json").write_text(json.dumps(claim))
    done = runner.invoke(explain_verb.command, [str(tmp_path), "--json"], catch_exceptions=False)
    assert json.loads(done.output)["epsilon"] > 0.0
    with pytest.raises(UsageError, match="SQ-220"):
        runner.invoke(explain_verb.command, [], catch_exceptions=False)


def test_the_command_is_quick_and_never_imports_torch() -> None:
    program = (
        "import sys; sys.argv = ['sequester', 'epsilon', '--noise-multiplier', '1.1', "
        "'--sampling-rate', '0.01', '--steps', '4000', '--delta', '1e-6', '--json']\n"
        "from sequester.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "assert 'torch' not in sys.modules and 'pandas' not in sys.modules\n"
    )
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["epsilon"] == pytest.approx(3.5335, rel=5e-4)
    assert time.perf_counter() - start < 15.0  # 1.5 s on a quiet machine: benchmarks/accounting
