"""One spelling for each JSON value."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.store.canonical import canonical_json, fingerprint, plain_json
from draftsmith.store.errors import StoreInputError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"a": 0.1 + 0.2}, {"a": 0.3}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([4.0, -0.0], [4, 0]),
        ((1, (2,)), [1, [2]]),
    ],
)
def test_equal_values_hash_equal(left: object, right: object) -> None:
    assert fingerprint(left) == fingerprint(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"a": 0.3}, {"a": 0.3000001}),
        ({"a": 1}, {"a": True}),
        ({"a": None}, {}),
        ([1, 2], [2, 1]),
        ({"a": "1"}, {"a": 1}),
    ],
)
def test_different_values_hash_differently(left: object, right: object) -> None:
    assert fingerprint(left) != fingerprint(right)


@settings(max_examples=50, deadline=None)
@given(VALUES)
def test_canonical_text_is_a_fixed_point(value: object) -> None:
    text = canonical_json(value)
    assert canonical_json(json.loads(text)) == text
    assert text.isascii()
    assert plain_json(value) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, {1: 2}, {"a": [object()]}, b"x", {1, 2}])
def test_what_json_cannot_hold_is_refused_with_its_place(value: object) -> None:
    with pytest.raises(StoreInputError, match=r"^\$"):
        canonical_json(value)
    with pytest.raises(StoreInputError, match=r"^\$"):
        plain_json(value)
