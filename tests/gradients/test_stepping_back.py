"""Where the fast engine steps back, and says so once: the numbers stay right."""

import torch.nn.functional as F
from torch import nn

from sequester.gradients import clipped_sum, oracle
from tests.gradients.lots import ragged, relative_error
from tests.gradients.models import BODIES


def classify(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none")


def correct(model, loss, lot):
    got, want = clipped_sum(model, loss, lot, 0.3), oracle.clipped_sum(model, loss, lot, 0.3)
    assert relative_error(got, want) < 1e-5


def test_people_who_meet_in_the_middle_are_taken_apart(caplog):
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 4)

        def forward(self, x):
            return self.head((x - x.mean(0)).mean(1))

    correct(Centred(), classify, ragged([3, 2, 4]))
    assert "mixes windows" in caplog.text
    assert "head (Linear)" in caplog.text


def test_the_notice_comes_once(caplog):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Bilinear(3, 3, 4)

        def forward(self, x):
            return self.mix(x, x).mean(1)

    model, lot = Odd(), ragged([3, 2, 4])
    for _ in range(3):
        correct(model, classify, lot)
    assert len(caplog.records) == 1
    assert "mix (Bilinear)" in caplog.text


def test_a_shape_that_reads_people_is_not_followed(caplog):
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 4)

        def forward(self, x):
            longest = int((x[:, :, 0] > 0).sum(1).max())
            return self.head(x[:, : max(longest, 1)].mean(1))

    correct(Cut(), classify, ragged([3, 2, 4]))
    assert "reads people's values" in caplog.text


def test_padding_to_other_people_is_not_followed(caplog):
    class Pads(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 4)

        def forward(self, x):
            lengths = (x[:, :, 0] > 0).sum(1).clamp_min(1)
            packed = nn.utils.rnn.pack_padded_sequence(
                x, lengths, batch_first=True, enforce_sorted=False
            )
            out, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
            return self.head(out.mean(1))

    lot = ragged([3, 2, 4])
    lot.x[lot.owner == 0] = -1.0  # one step each; others run longer
    correct(Pads(), classify, lot)
    assert "total_length" in caplog.text


def test_one_person_moves_the_sum_by_at_most_the_clip():
    model, lot = BODIES["gru"](), ragged([3, 2, 4])
    lot.x[lot.owner == 2] *= 100
    whole = clipped_sum(model, classify, lot, 0.01)
    rest = clipped_sum(model, classify, lot.select(0, 2), 0.01)
    moved = sum(float((whole.sum[k] - rest.sum[k]).double().square().sum()) for k in rest.sum)
    assert moved**0.5 <= 0.01 * (1 + 1e-5)
