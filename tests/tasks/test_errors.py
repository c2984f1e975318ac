"""Every error class can be told apart by its exit status, and survives a process border."""

import pickle

import pytest

from dags.operators.step_failure import error_classes
from tasks.errors import TailtowerError
from tasks.local_stack.errors import StackError


def _all(cls):
    return [cls, *(one for sub in cls.__subclasses__() for one in _all(sub))]


def test_exit_statuses_are_unique_and_leave_room_for_signals():
    assert StackError in _all(TailtowerError)
    codes = [cls.exit_code for cls in _all(TailtowerError) if "exit_code" in vars(cls)]
    assert len(set(codes)) == len(codes)
    assert all(2 < code < 64 for code in codes)
    assert set(error_classes()) == set(codes)


@pytest.mark.parametrize("cls", _all(TailtowerError))
def test_message_keeps_its_three_parts_across_processes(cls):
    error = pickle.loads(pickle.dumps(cls("it broke", where="a.parquet:3", fix="mend it")))
    assert type(error) is cls
    assert str(error) == "it broke\n  where: a.parquet:3\n  fix:   mend it"
    assert str(cls("it broke")) == "it broke"
