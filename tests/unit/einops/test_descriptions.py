"""Descriptions: what they read as, what they refuse, and where they point."""

from __future__ import annotations

import pytest

from strideweave.einops import (
    EinsumSpec,
    LayoutReference,
    RearrangeSpec,
    ReduceSpec,
    Token,
    TokenKind,
    lex,
    parse_einsum,
    parse_layout_ref,
    parse_rearrange,
    parse_reduce,
)

R = LayoutReference


def test_lex_of_every_kind_keeps_the_characters_and_their_places() -> None:
    text = " a_1(B\t1),->c"
    tokens = lex(text)
    assert [token.kind.name for token in tokens] == [
        "SYMBOL",
        "OPEN",
        "SYMBOL",
        "ONE",
        "CLOSE",
        "COMMA",
        "ARROW",
        "SYMBOL",
    ]
    assert all(text[token.offset : token.end] == token.text for token in tokens)
    assert lex("") == ()
    assert tokens[0] == Token(TokenKind.SYMBOL, "a_1", 1)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("a (b c) -> a b c", RearrangeSpec(R("a", R("b", "c")), R("a", "b", "c"))),
        ("a(b(c d))->((a d)c)b", RearrangeSpec(R("a", R("b", R("c", "d"))), R(R(R("a", "d"), "c"), "b"))),
        ("a 1 -> (a)", RearrangeSpec(R("a", 1), R("a"))),
        ("->", RearrangeSpec(R(), R())),
    ],
)
def test_parse_rearrange_reads_modes_groups_and_ones(text: str, reference: RearrangeSpec) -> None:
    spec = parse_rearrange(text)
    assert spec == reference
    assert parse_rearrange(str(spec)) == spec
    assert eval(repr(spec)) == spec


def test_parse_reduce_tells_what_is_omitted() -> None:
    spec = parse_reduce("a (b c) d -> d 1 b")
    assert spec == ReduceSpec(R("a", R("b", "c"), "d"), R("d", 1, "b"))
    assert spec.reduced == ("a", "c")
    assert parse_reduce("a b ->").reduced == ("a", "b")


@pytest.mark.parametrize(
    ("text", "spaced"),
    [
        ("ij,jk->ik", "i j, j k -> i k"),
        ("ij, jk -> ik", "i j, j k -> i k"),
        ("bhqd,bhkd->bhqk", "b h q d, b h k d -> b h q k"),
        ("ij->ji", "i j -> j i"),
        ("i,j,k->", "i, j, k ->"),
        ("aB,Bc->ac", "a B, B c -> a c"),
    ],
)
def test_parse_einsum_of_runs_of_letters_reads_every_letter(text: str, spaced: str) -> None:
    assert parse_einsum(text) == parse_einsum(spaced)


@pytest.mark.parametrize(
    ("text", "operands", "output"),
    [
        ("row inner, inner col -> row col", (R("row", "inner"), R("inner", "col")), R("row", "col")),
        ("left, right -> left right", (R("left"), R("right")), R("left", "right")),
        ("(time), (time) ->", (R("time"), R("time")), R()),
        ("x1, x1 -> x1", (R("x1"), R("x1")), R("x1")),
        ("x_, x_ -> x_", (R("x_"), R("x_")), R("x_")),
        ("ab -> ab 1", (R("ab"),), R("ab", 1)),
    ],
)
def test_parse_einsum_of_anything_else_reads_words(text: str, operands: tuple[R, ...], output: R) -> None:
    assert parse_einsum(text) == EinsumSpec(operands, output)


def test_einsum_spec_sorts_its_symbols_into_four_uses() -> None:
    spec = parse_einsum("b i k s, b k j -> j b i")
    assert (spec.batch, spec.contracted, spec.free, spec.summed) == (("b",), ("k",), ("i", "j"), ("s",))
    assert spec.symbols == ("b", "i", "k", "s", "j")


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_rearrange, "p q -> q p"),
        (parse_reduce, "p q -> q"),
        (parse_einsum, "p q, q -> p"),
        (parse_layout_ref, "p (q r)"),
    ],
)
def test_parse_of_the_same_text_gives_the_same_object(parse, text: str) -> None:  # type: ignore[no-untyped-def]
    again = "".join(list(text))  # another object, the same characters
    assert parse(text) is parse(again)


def test_parse_of_one_text_as_two_kinds_gives_two_kinds() -> None:
    assert isinstance(parse_rearrange("p q -> q p"), RearrangeSpec)
    assert isinstance(parse_reduce("p q -> q p"), ReduceSpec)


@pytest.mark.parametrize(
    ("parse", "text", "offset", "words"),
    [
        (lex, "a é", 2, "begins no token"),
        (lex, "a - b", 2, "The arrow is '->'"),
        (lex, "a 2", 2, "literal 1"),
        (lex, "a 1b", 2, "literal 1"),
        (lex, "...a", 0, "names no modes"),
        (lex, "_a", 0, "begins no token"),
        (parse_layout_ref, "a, b", 1, "cannot stand here"),
        (parse_layout_ref, "a (b (c)", 2, "not closed"),
        (parse_layout_ref, "a b)", 3, "no group is open"),
        (parse_layout_ref, "a ()", 2, "empty"),
        (parse_layout_ref, "a (b a)", 5, "stands twice"),
        (parse_rearrange, "a b", 3, "0 arrows"),
        (parse_rearrange, "a -> a -> a", 7, "2 arrows"),
        (parse_rearrange, "a, b -> a", 1, "second operand"),
        (parse_rearrange, "a -> a, b", 6, "cannot stand here"),
        (parse_rearrange, "a b -> b", 0, "left out"),
        (parse_rearrange, "a -> a b", 7, "not in the input"),
        (parse_reduce, "a b -> b c", 9, "not in the input"),
        (parse_reduce, "a b -> b b", 9, "stands twice"),
        (parse_einsum, "ii->i", 1, "Every letter is a symbol here"),
        (parse_einsum, "ij,jk->il", 8, "not in the input"),
        (parse_einsum, "a b, b c -> a d", 14, "not in the input"),
        (parse_einsum, "a b, b c", 8, "0 arrows"),
        (parse_einsum, "...ij,jk->...ik", 0, "names no modes"),
    ],
)
def test_description_that_is_wrong_is_refused_with_its_place(parse, text: str, offset: int, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=f"at character {offset}, ") as refused:
        parse(text)
    message, shown, caret = str(refused.value).splitlines()
    assert words in message
    assert shown == "    " + text
    assert caret == "    " + " " * offset + "^"


@pytest.mark.parametrize("parse", [lex, parse_layout_ref, parse_rearrange, parse_reduce, parse_einsum])
@pytest.mark.parametrize("text", [None, 3, b"a -> a", ["a"]])
def test_description_that_is_no_str_is_refused(parse, text: object) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TypeError, match="Pass a str"):
        parse(text)


def test_caret_of_a_text_of_several_lines_stands_below_its_character() -> None:
    with pytest.raises(ValueError, match="at character 5") as refused:
        parse_rearrange("a\n-> b")
    _, shown, caret = str(refused.value).splitlines()
    assert shown[caret.index("^")] == "b"


@pytest.mark.parametrize("item", [2, True, None, 1.0])
def test_layout_reference_of_another_item_is_refused(item: object) -> None:
    with pytest.raises(TypeError, match="symbol, 1 or a LayoutReference"):
        LayoutReference(item)  # type: ignore[arg-type]
