"""Predicates as text, in SQL's words: `"l.rack < r.rack AND abs(l.x - r.x) <= 5"`.

For people who come from SQL, and for settings in files. The text becomes the same tree that `left.rack < right.rack`
builds, so it means the same, nulls included; what SQL has and a predicate has not is an error that says so.

Grammar, loosest first: OR; AND; one comparison (`= == <> != < <= > >=`, BETWEEN … AND …); `+ -`; `*`; unary `-`;
numbers, texts in single quotes, `abs(…)`, `cast(… AS type)`, and columns: `l.name`, `left.name`, `r.name`,
`right.name`, with odd names in backticks or double quotes.
"""

__all__ = ["predicate_of"]

import re
from typing import NoReturn

from ..errors import PredicateError
from .expressions import Expression, left, lit, right

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<text>'(?:[^']|'')*')
    | (?P<odd>`(?:[^`]|``)+`|"(?:[^"]|"")+")
    | (?P<word>[^\W\d]\w*)
    | (?P<sign><=|>=|<>|!=|==|[-+*/%<>=().,])
    )""",
    re.VERBOSE,
)
_SIDES = {"l": left, "left": left, "r": right, "right": right}
MOST_WORDS = 4_000
"""Words of a text: what is longer makes a tree that is too deep to be walked."""

_TYPES = {
    "tinyint": "int8", "smallint": "int16", "int": "int32", "integer": "int32", "bigint": "int64", "long": "int64",
    "float": "float32", "real": "float32", "double": "float64", "boolean": "bool",
}  # fmt: skip
_COMPARISONS = {"=": "__eq__", "==": "__eq__", "<>": "__ne__", "!=": "__ne__", "<": "__lt__", "<=": "__le__",
                ">": "__gt__", ">=": "__ge__"}  # fmt: skip


def predicate_of(text: str, where: str = "") -> Expression:
    """Read a predicate; `where`: which step it is of, for messages.

    >>> print(predicate_of("l.rack < r.rack AND abs(l.x - r.x) <= 2.5"))
    (left.rack < right.rack) & ((left.x - right.x).abs() <= 2.5)
    """
    try:
        return _Text(text, where).read()
    except RecursionError:
        raise PredicateError(
            f"{where}on={text[:20]!r}…: it is too long, or nested too deeply; give a list of predicates"
        ) from None


class _Text:
    """A text, cut into words; one is looked at after the other."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where, self.at = text, where, 0
        self.words: list[tuple[str, str, int]] = []
        at = 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                at = len(text) - len(text[at:].lstrip())
                self._wrong(at, f"{text[at]!r} cannot stand there")
            kind = str(found.lastgroup)
            self.words.append((kind, found[kind], found.start(kind)))
            at = found.end()
        self.words.append(("end", "", len(text)))
        if len(self.words) > MOST_WORDS:
            raise RecursionError

    def read(self) -> Expression:
        """Return all of it."""
        found = self._either()
        if self.words[self.at][0] != "end":
            self._wrong(None, "AND, OR or the end should come; predicates compare with = < <= > >= <> and BETWEEN")
        return found

    def _wrong(self, at: int | None, why: str) -> NoReturn:
        at = self.words[self.at][2] if at is None else at
        rest = self.text[at : at + 12] or "its end"
        raise PredicateError(f"{self.where}on={self.text!r}: at {rest!r} (character {at + 1}): {why}")

    def _word(self, *words: str) -> bool:
        """Pass over one of these words, or say that none is there."""
        kind, word, _ = self.words[self.at]
        if kind in ("word", "sign") and word.lower() in words:
            self.at += 1
            return True
        return False

    def _must(self, word: str) -> None:
        if not self._word(word):
            self._wrong(None, f"{word.upper()} should come")

    def _either(self) -> Expression:
        found = self._both()
        while self._word("or"):
            found = found | self._both()
        return found

    def _both(self) -> Expression:
        found = self._comparison()
        while self._word("and"):
            found = found & self._comparison()
        return found

    def _comparison(self) -> Expression:
        if self.words[self.at][1].lower() == "not":
            self._wrong(None, "there is no NOT; write the opposite comparison")
        found = self._sum()
        if self._word("between"):
            low = self._sum()
            self._must("and")
            return found.between(low, self._sum())
        for sign, method in _COMPARISONS.items():
            if self._word(sign):
                return getattr(found, method)(self._sum())
        return found

    def _sum(self) -> Expression:
        found = self._product()
        while True:
            if self._word("+"):
                found = found + self._product()
            elif self._word("-"):
                found = found - self._product()
            else:
                return found

    def _product(self) -> Expression:
        found = self._single()
        while self._word("*"):
            found = found * self._single()
        if self.words[self.at][1] in ("/", "%"):
            self._wrong(None, "there is no division; multiply the other side")
        return found

    def _single(self) -> Expression:
        kind, word, _ = self.words[self.at]
        if self._word("-"):
            return -self._single()
        if self._word("("):
            found = self._either()
            self._must(")")
            return found
        self.at += 1
        if kind == "number":
            return lit(int(word) if word.isdecimal() else float(word))
        if kind == "text":
            return lit(word[1:-1].replace("''", "'"))
        self.at -= 1
        if kind == "word" and self.words[self.at + 1][1] == "(":
            return self._function()
        if kind not in ("word", "odd"):
            self._wrong(None, "a column, a number or a text should come")
        return self._column()

    def _function(self) -> Expression:
        if self._word("abs"):
            self._must("(")
            found = self._sum().abs()
        elif self._word("cast"):
            self._must("(")
            value = self._sum()
            self._must("as")
            kind = self.words[self.at][1].lower()
            self.at += 1
            found = value.cast(_TYPES.get(kind, kind))
        else:
            self._wrong(None, "there are two functions, abs(…) and cast(… AS type); use dt.udf for others")
        self._must(")")
        return found

    def _column(self) -> Expression:
        kind, word, _ = self.words[self.at]
        if kind != "word" or word.lower() not in _SIDES or self.words[self.at + 1][1] != ".":
            self._wrong(None, "say of which side a column is: l.name or r.name")
        self.at += 2
        kind, name, _ = self.words[self.at]
        if kind not in ("word", "odd"):
            self._wrong(None, "a column's name should come")
        self.at += 1
        quote = name[0]
        return _SIDES[word.lower()][name if kind == "word" else name[1:-1].replace(2 * quote, quote)]
