"""Whole descriptions: what is taken, an arrow, and what is made of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from strideweave.einops.references import CACHED, LayoutReference, read_side
from strideweave.einops.tokens import Token, TokenKind, lex, refusal, require_text


@dataclass(frozen=True, slots=True)
class RearrangeSpec:
    """The same modes in another order and nesting.

    >>> from strideweave.einops import parse_rearrange
    >>> str(parse_rearrange("a (b c)->c (a b)"))
    'a (b c) -> c (a b)'
    """

    input: LayoutReference
    """The modes as they are."""
    output: LayoutReference
    """The modes as they become: the same symbols."""

    def __str__(self) -> str:
        return f"{self.input} -> {self.output}"


@dataclass(frozen=True, slots=True)
class ReduceSpec:
    """The modes that stay, and by omission those that are reduced.

    >>> from strideweave.einops import parse_reduce
    >>> parse_reduce("a (b c) -> c").reduced
    ('a', 'b')
    """

    input: LayoutReference
    """The modes as they are."""
    output: LayoutReference
    """The modes that stay, as they become."""

    @property
    def reduced(self) -> tuple[str, ...]:
        """The symbols that the output omits, first mode first."""
        kept = set(self.output.symbols)
        return tuple(symbol for symbol in self.input.symbols if symbol not in kept)

    def __str__(self) -> str:
        return f"{self.input} -> {self.output}"


@dataclass(frozen=True, slots=True)
class EinsumSpec:
    """The modes of every operand and of the result; what the result omits is summed over.

    >>> from strideweave.einops import parse_einsum
    >>> spec = parse_einsum("b i k, b k j -> b i j")
    >>> spec.batch, spec.contracted, spec == parse_einsum("bik,bkj->bij")
    (('b',), ('k',), True)
    """

    operands: tuple[LayoutReference, ...]
    """The modes of every operand, first operand first."""
    output: LayoutReference
    """The modes of the result."""

    @property
    def symbols(self) -> tuple[str, ...]:
        """Every symbol of the operands once, in the order in which they first stand."""
        return tuple(dict.fromkeys(symbol for operand in self.operands for symbol in operand.symbols))

    @property
    def batch(self) -> tuple[str, ...]:
        """The symbols that several operands and the result have."""
        return tuple(s for s in self.symbols if self._uses(s) > 1 and s in self.output.symbols)

    @property
    def contracted(self) -> tuple[str, ...]:
        """The symbols that several operands have and the result omits."""
        return tuple(s for s in self.symbols if self._uses(s) > 1 and s not in self.output.symbols)

    @property
    def free(self) -> tuple[str, ...]:
        """The symbols that one operand and the result have."""
        return tuple(s for s in self.symbols if self._uses(s) == 1 and s in self.output.symbols)

    @property
    def summed(self) -> tuple[str, ...]:
        """The symbols that one operand has and the result omits."""
        return tuple(s for s in self.symbols if self._uses(s) == 1 and s not in self.output.symbols)

    def _uses(self, symbol: str) -> int:
        return sum(symbol in operand.symbols for operand in self.operands)

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.operands))} -> {self.output}"


def parse_rearrange(text: str) -> RearrangeSpec:
    """The rearrangement that a text such as `"a (b c) -> c (a b)"` reads as; the same object for the same text.

    Errors: TypeError for what is no str; ValueError, with the place, for a text that is no description or whose sides
    do not have the same symbols.

    >>> from strideweave.einops import parse_rearrange
    >>> parse_rearrange("a b -> b")
    Traceback (most recent call last):
    ValueError: cannot parse rearrange description 'a b -> b': at character 0, symbol 'a' is left out of the output. ...
        a b -> b
        ^
    """
    require_text(text)
    return _parse_rearrange(text)


def parse_reduce(text: str) -> ReduceSpec:
    """The reduction that a text such as `"a (b c) -> a c"` reads as; the same object for the same text.

    Errors: as for `parse_rearrange`, but the output may omit symbols.

    >>> from strideweave.einops import parse_reduce
    >>> parse_reduce("a b -> c")
    Traceback (most recent call last):
    ValueError: cannot parse reduce description 'a b -> c': at character 7, symbol 'c' is not in the input. ...
        a b -> c
               ^
    """
    require_text(text)
    return _parse_reduce(text)


def parse_einsum(text: str) -> EinsumSpec:
    """The products and sums that a text such as `"a b, b c -> a c"` reads as; the same object for the same text.

    A text is compact, as PyTorch writes it, when every operand and the result is nothing but one run of letters:
    then every letter is a symbol, so `"ij,jk->ik"` and `"ij, jk -> ik"` mean `"i j, j k -> i k"`. A space between
    two symbols, parentheses, a digit or an underscore anywhere makes every run one symbol: `"(time), (time) ->"`.
    Errors: as for `parse_reduce`.

    >>> from strideweave.einops import parse_einsum
    >>> str(parse_einsum("bhqd,bhkd->bhqk"))
    'b h q d, b h k d -> b h q k'
    >>> parse_einsum("ij, jk -> il")
    Traceback (most recent call last):
    ValueError: cannot parse einsum description 'ij, jk -> il': at character 11, symbol 'l' is not in the input. ...
        ij, jk -> il
                   ^
    """
    require_text(text)
    return _parse_einsum(text)


@lru_cache(maxsize=CACHED)
def _parse_rearrange(text: str) -> RearrangeSpec:
    verb = "parse rearrange description"
    left, right = _sides(verb, text, lex(text))
    spec = RearrangeSpec(read_side(verb, text, _one_operand(verb, text, left)), read_side(verb, text, right))
    _require_known(verb, text, right, spec.input.symbols)
    for token in left:
        if token.kind is TokenKind.SYMBOL and token.text not in spec.output.symbols:
            facts = (
                f"symbol {token.text!r} is left out of the output. A rearrangement keeps every mode. Add it there, or "
                "reduce."
            )
            raise ValueError(refusal(verb, text, token.offset, facts))
    return spec


@lru_cache(maxsize=CACHED)
def _parse_reduce(text: str) -> ReduceSpec:
    verb = "parse reduce description"
    left, right = _sides(verb, text, lex(text))
    spec = ReduceSpec(read_side(verb, text, _one_operand(verb, text, left)), read_side(verb, text, right))
    _require_known(verb, text, right, spec.input.symbols)
    return spec


@lru_cache(maxsize=CACHED)
def _parse_einsum(text: str) -> EinsumSpec:
    verb = "parse einsum description"
    tokens, hint = lex(text), ""
    if _is_compact(tokens):
        tokens = tuple(_letters(tokens))
        hint = " Every letter is a symbol here, as every part is one run of letters; (name) is one symbol."
    left, right = _sides(verb, text, tokens)
    commas = [k for k, token in enumerate(left) if token.kind is TokenKind.COMMA]
    parts = [left[start + 1 : stop] for start, stop in pairwise([-1, *commas, len(left)])]
    spec = EinsumSpec(tuple(read_side(verb, text, part, hint) for part in parts), read_side(verb, text, right, hint))
    _require_known(verb, text, right, spec.symbols, hint)
    return spec


def _is_compact(tokens: tuple[Token, ...]) -> bool:
    separators = {TokenKind.COMMA, TokenKind.ARROW}
    runs = all(token.kind in separators or token.text.isalpha() for token in tokens)
    return runs and all(a.kind in separators or b.kind in separators for a, b in pairwise(tokens))


def _letters(tokens: Iterable[Token]) -> Iterator[Token]:
    for token in tokens:
        if token.kind is TokenKind.SYMBOL:
            yield from (Token(token.kind, letter, token.offset + k) for k, letter in enumerate(token.text))
        else:
            yield token


def _sides(verb: str, text: str, tokens: tuple[Token, ...]) -> tuple[tuple[Token, ...], tuple[Token, ...]]:
    arrows = [k for k, token in enumerate(tokens) if token.kind is TokenKind.ARROW]
    if len(arrows) != 1:
        offset = tokens[arrows[1]].offset if arrows else len(text)
        facts = f"there are {len(arrows)} arrows. A description has one '->'. Write what is made behind one."
        raise ValueError(refusal(verb, text, offset, facts))
    return tokens[: arrows[0]], tokens[arrows[0] + 1 :]


def _one_operand(verb: str, text: str, tokens: tuple[Token, ...]) -> tuple[Token, ...]:
    for token in tokens:
        if token.kind is TokenKind.COMMA:
            facts = "',' begins a second operand. Only einsum has several. Pass one."
            raise ValueError(refusal(verb, text, token.offset, facts))
    return tokens


def _require_known(verb: str, text: str, side: tuple[Token, ...], known: tuple[str, ...], hint: str = "") -> None:
    for token in side:
        if token.kind is TokenKind.SYMBOL and token.text not in known:
            facts = (
                f"symbol {token.text!r} is not in the input. The output has symbols of the input. Use one of "
                f"{', '.join(known) or 'none'}.{hint}"
            )
            raise ValueError(refusal(verb, text, token.offset, facts))
