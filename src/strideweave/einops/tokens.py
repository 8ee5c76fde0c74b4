"""The words of a description: symbols, literal ones, parentheses, commas and arrows, each with its place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class TokenKind(Enum):
    """What a token is.

    >>> from strideweave.einops import TokenKind
    >>> [kind.name for kind in TokenKind]
    ['SYMBOL', 'ONE', 'OPEN', 'CLOSE', 'ARROW', 'COMMA']
    """

    SYMBOL = "symbol"
    """The name of a mode."""
    ONE = "1"
    """A mode of one coordinate."""
    OPEN = "("
    """The start of a group."""
    CLOSE = ")"
    """The end of a group."""
    ARROW = "->"
    """What is taken stands before it, what is made after it."""
    COMMA = ","
    """The end of an operand."""


@dataclass(frozen=True, slots=True)
class Token:
    """One word of a description.

    >>> from strideweave.einops import Token, TokenKind
    >>> Token(TokenKind.SYMBOL, "batch", 3).end
    8
    """

    kind: TokenKind
    """What it is."""
    text: str
    """Its characters."""
    offset: int
    """How many characters stand before it."""

    @property
    def end(self) -> int:
        """The offset of the first character behind it."""
        return self.offset + len(self.text)


_WORD = re.compile(r"(?P<SYMBOL>[A-Za-z][A-Za-z0-9_]*)|(?P<ONE>1(?![A-Za-z0-9_]))|->|[(),]")
_PUNCTUATION = {kind.value: kind for kind in (TokenKind.OPEN, TokenKind.CLOSE, TokenKind.ARROW, TokenKind.COMMA)}


def lex(text: str) -> tuple[Token, ...]:
    """The tokens of a description in order; whitespace only separates.

    Errors: TypeError for what is no str; ValueError, with the place, for a character that begins no token.

    >>> from strideweave.einops import lex
    >>> [(token.kind.name, token.text, token.offset) for token in lex("a 1->")]
    [('SYMBOL', 'a', 0), ('ONE', '1', 2), ('ARROW', '->', 3)]
    """
    require_text(text)
    tokens: list[Token] = []
    offset = 0
    while offset < len(text):
        if text[offset].isspace():
            offset += 1
            continue
        found = _WORD.match(text, offset)
        if found is None:
            raise ValueError(refusal("lex", text, offset, _stranger(text, offset)))
        word = found.group()
        kind = TokenKind[found.lastgroup] if found.lastgroup else _PUNCTUATION[word]
        tokens.append(Token(kind, word, offset))
        offset = found.end()
    return tuple(tokens)


def refusal(verb: str, text: str, offset: int, facts: str) -> str:
    """The message for what is wrong at one place of a description: the facts, the text, and a caret below the place."""
    # A caret below a text of several lines would point nowhere: whitespace only separates anyway.
    line = "".join(" " if c.isspace() else c for c in text)
    return f"cannot {verb} {text!r}: at character {offset}, {facts}\n    {line}\n    {' ' * offset}^"


def require_text(text: object) -> None:
    """Errors: TypeError for what is no str."""
    if not isinstance(text, str):
        raise TypeError(f"cannot read a description from {text!r}: it is {type(text).__name__}. Pass a str.")


def _stranger(text: str, offset: int) -> str:
    if text.startswith("...", offset):
        return "'...' names no modes. Every mode has a symbol. Write one for each."
    if text[offset].isdigit():
        digits = re.match(r"\w+", text[offset:])
        number = digits.group() if digits else text[offset]
        return f"{number!r} is no symbol. The only number is a literal 1. Name the mode, and pass its size by keyword."
    if text[offset] in "->":
        return f"{text[offset]!r} begins no token. The arrow is '->'. Write it whole."
    return (
        f"{text[offset]!r} begins no token. A symbol is a letter, then letters, digits and underscores; beside these "
        "there are 1, parentheses, ',' and '->'. Remove it."
    )
