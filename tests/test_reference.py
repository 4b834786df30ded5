"""The whole record is what a naive loop makes, request by request and token by token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import POINTS, Case, cases, differences, examples, naive, real


@pytest.mark.parametrize("name", POINTS)
@given(data=st.data())
@examples(24)
def test_the_record_is_the_reference(name: str, data: st.DataObject) -> None:
    case: Case = data.draw(cases([name]))
    assert differences(real(case), naive(case)) == []
