"""One side of a description: the modes of a layout by name, nested like the layout."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from strideweave.einops.tokens import Token, TokenKind, lex, refusal, require_text

Item: TypeAlias = "str | int | LayoutReference"
"""A symbol, the literal 1, or a group."""

CACHED = 4096
"""How many descriptions of each kind are kept parsed; programs have a few dozen."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class LayoutReference:
    """The modes of a layout by name: every item is a symbol, the literal 1, or a group, which is a nested mode.

    >>> from strideweave.einops import parse_layout_ref
    >>> a = parse_layout_ref("a (b c) 1")
    >>> a
    LayoutReference('a', LayoutReference('b', 'c'), 1)
    >>> a.symbols, len(a), str(a)
    (('a', 'b', 'c'), 3, 'a (b c) 1')
    """

    items: tuple[Item, ...]
    """The modes of the top level, first mode first."""

    def __init__(self, *items: Item) -> None:
        for item in items:
            if not isinstance(item, str | LayoutReference) and not (type(item) is int and item == 1):
                raise TypeError(
                    f"cannot refer to a mode as {item!r}: an item is a symbol, 1 or a LayoutReference. "
                    "Pass one of these."
                )
        object.__setattr__(self, "items", items)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Every symbol, first mode first."""
        out: list[str] = []
        for item in self.items:
            if isinstance(item, LayoutReference):
                out += item.symbols
            elif isinstance(item, str):
                out.append(item)
        return tuple(out)

    def __len__(self) -> int:
        return len(self.items)

    def __str__(self) -> str:
        return " ".join(f"({item})" if isinstance(item, LayoutReference) else str(item) for item in self.items)

    def __repr__(self) -> str:
        return f"LayoutReference({', '.join(map(repr, self.items))})"


def parse_layout_ref(text: str) -> LayoutReference:
    """The reference that a text such as `"a (b c)"` reads as; the same object for the same text.

    Parentheses around one symbol change nothing. Errors: TypeError for what is no str; ValueError, with the place, for
    parentheses that do not pair, an empty group, a symbol that stands twice, a comma or an arrow.

    >>> from strideweave.einops import parse_layout_ref
    >>> parse_layout_ref("a (b")
    Traceback (most recent call last):
    ValueError: cannot parse layout reference 'a (b': at character 2, the group is not closed. ...
        a (b
          ^
    """
    require_text(text)
    return _parse_layout_ref(text)


@lru_cache(maxsize=CACHED)
def _parse_layout_ref(text: str) -> LayoutReference:
    return read_side("parse layout reference", text, lex(text))


def read_side(verb: str, text: str, tokens: tuple[Token, ...], hint: str = "") -> LayoutReference:
    """The reference that the tokens of one side read as. Errors: as for `parse_layout_ref`; `hint` ends a message."""
    levels: list[list[Item]] = [[]]
    opened: list[Token] = []
    seen: set[str] = set()
    for token in tokens:
        if token.kind is TokenKind.SYMBOL:
            if token.text in seen:
                facts = f"symbol {token.text!r} stands twice. A side names every mode once. Use another symbol.{hint}"
                raise ValueError(refusal(verb, text, token.offset, facts))
            seen.add(token.text)
            levels[-1].append(token.text)
        elif token.kind is TokenKind.ONE:
            levels[-1].append(1)
        elif token.kind is TokenKind.OPEN:
            opened.append(token)
            levels.append([])
        elif token.kind is TokenKind.CLOSE:
            if not opened:
                facts = "no group is open. Parentheses pair. Remove this one, or open it."
                raise ValueError(refusal(verb, text, token.offset, facts))
            group, start = levels.pop(), opened.pop()
            if not group:
                facts = "the group is empty. A mode of one coordinate is written 1. Write it, or name the modes."
                raise ValueError(refusal(verb, text, start.offset, facts))
            levels[-1].append(group[0] if len(group) == 1 else LayoutReference(*group))
        else:
            facts = f"{token.text!r} cannot stand here. A side has symbols, 1 and groups. Remove it."
            raise ValueError(refusal(verb, text, token.offset, facts))
    if opened:
        facts = "the group is not closed. Parentheses pair. Close it."
        raise ValueError(refusal(verb, text, opened[-1].offset, facts))
    return LayoutReference(*levels[0])
