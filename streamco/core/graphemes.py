"""Cuts text, if possible before a word, but never inside what a person sees as one character.

Unicode calls such a character a grapheme cluster (UAX #29): a letter with its marks, an emoji with its skin tone, or a family of joined
emoji. The standard library doesn't find them. The rules here are simple and strict: they allow no cut where UAX #29 has none, and fewer
cuts than UAX #29 within Hangul letters, between flags and next to invisible format characters.
"""

from __future__ import annotations

from unicodedata import category, combining

__all__ = ["cut_evenly", "is_boundary"]

_FIRST_MARK = "\u0300"  # no character before it extends another one
_EXTENDING = frozenset({"Mn", "Mc", "Me"})
_INVISIBLE = frozenset({"Cf", "Cs"})  # joiners, tags and other format characters; halves of surrogate pairs
_VIRAMA = 9  # combining class of the signs that join two consonants of an Indian script
_FURTHER_EXTENDING = frozenset("\u0e33\u0eb3\uff9e\uff9f")  # vowel signs and sound marks that Unicode counts as letters
_WORD_REACH = 16  # how many characters to search for the beginning of a word
_CLUSTER_REACH = 1024  # how many characters to search for the end of a cluster: a server may send a million marks


def is_boundary(text: str, index: int) -> bool:
    """Return True if a cut before ``text[index]`` doesn't divide a grapheme cluster or a surrogate pair.

    Args:
        text: the text.
        index: 1 to ``len(text) - 1``.
    """
    before, after = text[index - 1], text[index]
    if before < _FIRST_MARK and after < _FIRST_MARK:
        return not (before == "\r" and after == "\n")
    kind = category(after)
    if kind in _EXTENDING or kind in _INVISIBLE or after in _FURTHER_EXTENDING or category(before) in _INVISIBLE:
        return False
    if combining(before) == _VIRAMA or _is_skin_tone(after):
        return False
    if _is_hangul_letter(after, first=False) or _is_hangul_letter(before, first=True):
        return False
    return not (_is_flag_letter(before) and _is_flag_letter(after))


def _is_skin_tone(character: str) -> bool:
    return "\U0001f3fb" <= character <= "\U0001f3ff"


def _is_flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _is_hangul_letter(character: str, *, first: bool) -> bool:
    """Return True if a letter can begin a Hangul syllable (``first``), or otherwise if it can continue one."""
    if first:
        return "\u1100" <= character <= "\u115f" or "\ua960" <= character <= "\ua97f"
    return "\u1160" <= character <= "\u11ff" or "\ud7b0" <= character <= "\ud7ff"


def cut_evenly(text: str, pieces: int) -> list[str]:
    """Cut the text into at most this many pieces of about the same length, and return them.

    Each piece after the first begins at the space before a word if there is one nearby, otherwise between two grapheme clusters.
    """
    cuts = [0]
    length = len(text)
    reach = min(_WORD_REACH, length // (2 * pieces))
    for number in range(1, pieces):
        wanted = max(number * length // pieces, cuts[-1] + 1)
        cut = _word_near(text, wanted, cuts[-1], reach)
        if cut is None:
            cut = next((index for index in range(wanted, min(length, wanted + _CLUSTER_REACH)) if is_boundary(text, index)), None)
        if cut is not None:
            cuts.append(cut)
    return [text[start:end] for start, end in zip(cuts, [*cuts[1:], length], strict=True)]


def _word_near(text: str, wanted: int, after: int, reach: int) -> int | None:
    """Return the index of the space before a word that is nearest to ``wanted`` but after ``after``, or None if none is nearby."""
    for distance in range(reach + 1):
        for index in (wanted - distance, wanted + distance):
            if after < index < len(text) and text[index].isspace() and not text[index - 1].isspace() and is_boundary(text, index):
                return index
    return None
