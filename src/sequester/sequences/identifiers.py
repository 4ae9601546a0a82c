"""Identifiers are text, always, and one person has one: splitting a person multiplies ε.

`007`, `9007199254740993`, `NA` and `Ångström` are identifiers as they stand. They are put in
Unicode's composed form (NFC) and trimmed, and white space inside, of whatever kind and length,
becomes one blank; what cannot be seen or told apart is refused, and so is what a spreadsheet or a
data frame leaves of a number (`1.46223E+12`, `2.0`).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sequester.core.errors import UsageError

LONGEST = 1024  # characters; what is longer is a broken file, not a name
_REFUSED = {"Cc", "Cf", "Cs", "Co", "Cn"}  # control, format (zero width), surrogate, private use
_UNSEEN = re.compile(
    # Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties.txt (versions 13 to 16 agree).
    "[\u00ad\u034f\u061c\u115f-\u1160\u17b4-\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # Signs whose picture is blank: Braille, Khitan's filler, hieroglyphs, a note without a head.
    "\u2800\U00016fe4\U00013441-\U00013442\U0001d159]"
)
_DAMAGED = {  # as doubles are written: no writer has `1e3`, nor more than three digits of exponent
    "are in scientific notation": re.compile(
        r"[+-]?[0-9]([.,][0-9]+[eE][+]?[0-9]{1,3}|[eE]([+][0-9]{1,3}|[0-9]{2,3}))"
    ),
    "are whole numbers with a decimal point": re.compile(r"[+-]?[0-9]+[.,]0+"),
}


def as_text(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column as text, without ever passing through floating point.

    Raises:
        UsageError: SQ-108 for floating-point identifiers, which may already be wrong.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # zero chunks combine to a chunked array
        array = pa.array([], array.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_floating(array.type):
        raise UsageError(
            108,
            "identifiers are floating-point numbers, which merge people above 2^53 and turn one "
            "missing identifier into all wrong ones; store them as text or integers",
        )
    if pa.types.is_null(array.type):
        return array.cast(pa.large_string())
    if not (
        pa.types.is_integer(array.type)
        or pa.types.is_string(array.type)
        or pa.types.is_large_string(array.type)
        or pa.types.is_string_view(array.type)
        or pa.types.is_decimal(array.type)
    ):
        raise UsageError(108, f"identifiers must be text or integers, got {array.type}")
    return array.cast(pa.large_string())


def coded(
    column: pa.ChunkedArray | pa.Array, *, fold_case: bool = False
) -> tuple[list[str], np.ndarray]:
    """One spelling for each person, and which spelling each row has.

    Returns:
        Normal forms, of which several may be the same; int `(rows,)`, the place of each row's.

    Raises:
        UsageError: SQ-108 for an empty, invisible, overlong or floating-point identifier; it
            names how many rows, never which. Also for text that was a floating-point number,
            with the number of people so far.
    """
    encoded = as_text(column).dictionary_encode()
    if encoded.null_count:
        raise _refusal(encoded.null_count, "have no identifier")
    words = [_one(word, fold_case=fold_case) for word in encoded.dictionary.to_pylist()]
    at = encoded.indices.to_numpy(zero_copy_only=False)
    for reason in ("are empty", f"exceed {LONGEST} characters", "hold invisible characters"):
        bad = [i for i, (_, fault) in enumerate(words) if fault == reason]
        if bad:
            raise _refusal(int(np.isin(at, bad).sum()), reason)
    _refuse_damaged({word for word, _ in words})
    return [word for word, _ in words], at


def plainest(word: str, *, fold_case: bool) -> str:
    """What a normal form has in common with all that only the form of letters tells apart (NFKC).

    Args:
        word: A normal form.
        fold_case: As it was made with.
    """
    if word.isascii():
        return word
    form = " ".join(unicodedata.normalize("NFKC", word).split())
    return unicodedata.normalize("NFKC", form.casefold()) if fold_case else form


def refuse_lookalikes(words: Sequence[str], *, fold_case: bool = False) -> None:
    """Refuse people whom only the width or form of a letter tells apart, such as `1` and `１`.

    Args:
        words: The normal forms of everybody, each once.
        fold_case: As they were made with.

    Raises:
        UsageError: SQ-108 with the number of people whom Unicode's compatibility form (NFKC)
            would merge with another.
    """
    if all(word.isascii() for word in words):
        return
    forms = Counter(plainest(word, fold_case=fold_case) for word in words)
    if alike := sum(many for many in forms.values() if many > 1):
        raise UsageError(
            108,
            f"{alike} people have identifiers that differ only in the width or form of their "
            "characters, as full-width digits do, so that one person may count as two: write "
            "them in one form (NFKC) in the source",
        )


def _refuse_damaged(words: set[str]) -> None:
    for reason, pattern in _DAMAGED.items():
        damaged = sum(
            pattern.fullmatch(plainest(word, fold_case=False)) is not None for word in words
        )
        if damaged:
            raise UsageError(
                108,
                f"the identifiers of {damaged} people or more {reason}: a spreadsheet or data "
                "frame made numbers of them, which may merge people or split them; export the "
                "source again with its identifiers as text",
            )


def _one(word: str, *, fold_case: bool) -> tuple[str, str]:
    """The normal form and what is wrong with it (`""` when nothing is)."""
    if len(word) > LONGEST:
        return "", f"exceed {LONGEST} characters"
    if word.isascii() and word.isprintable():
        clean = word.strip() if "  " not in word else " ".join(word.split())
    else:
        clean = " ".join(unicodedata.normalize("NFC", word).split())
        letters = _without_joiners(clean)
        if _UNSEEN.search(letters) or not _REFUSED.isdisjoint(map(unicodedata.category, letters)):
            return "", "hold invisible characters"
    if not clean:
        return "", "are empty"
    return (clean.casefold() if fold_case else clean), ""


def _without_joiners(word: str) -> str:
    """`word` without the joiners inside an emoji, which are seen (family, flag, profession)."""
    kept = []
    for at, letter in enumerate(word):
        inside = 0 < at < len(word) - 1
        if letter == "\u200d" and inside:
            sides = unicodedata.category(word[at + 1]), unicodedata.category(word[at - 1])
            if sides[0] == "So" and sides[1] in {"So", "Sk", "Mn"}:
                continue
        kept.append(letter)
    return "".join(kept)


def _refusal(rows: int, reason: str) -> UsageError:
    return UsageError(
        108,
        f"{rows} identifiers {reason}; every record needs one visible name of its person of at "
        f"most {LONGEST} characters: repair the source",
    )
