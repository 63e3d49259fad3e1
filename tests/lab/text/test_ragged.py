"""Records of numbers, held in arrays, are read back as they were."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floater.lab.text import ragged
from floater.lab.text.ragged import Records

INTEGERS = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"ids": INTEGERS, "choices": st.lists(INTEGERS, min_size=1), "label": st.floats(allow_nan=False)}
    )
)


@given(ROWS, st.integers(1, 3))
def test_records_are_read_back(rows: list[dict[str, Any]], block: int) -> None:
    """Also from several blocks, from the end, and as a slice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "_RECORDS", block)
        records = Records.of(iter(rows))
        assert len(records) == len(rows)
        assert list(records) == records[:] == rows
        assert [records[-1 - i] for i in range(len(rows))] == rows[::-1]
        if rows:
            assert [ids.tolist() for ids in records.column("ids")] == [row["ids"] for row in rows]
        with pytest.raises(IndexError):
            records[len(rows)]
