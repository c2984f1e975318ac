"""Protects: an error that comes again fails at once, one that may go away is tried again."""

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from dags.operators.step_failure import error_classes, failure, is_not_yet, is_nothing_to_do
from dags.operators.step_process import StepExit
from tasks import errors

FAIL_AT_ONCE = [
    errors.TailtowerError,
    errors.ConfigError,
    errors.DataError,
    errors.ContractError,
    errors.LakeError,
    errors.UpstreamError,
    errors.NothingToDoError,
]
TRY_AGAIN = [
    errors.PartitionMissingError,
    errors.TrainingError,
    errors.ClusterError,
    errors.TrackingError,
]


def failed(status: int) -> AirflowException:
    return failure("count", StepExit(status, None, ("line before last", "last line")))


@pytest.mark.parametrize("cls", FAIL_AT_ONCE)
def test_errors_that_come_again(cls: type[errors.TailtowerError]):
    raised = failed(cls.exit_code)
    assert isinstance(raised, AirflowFailException)
    assert cls.__name__ in str(raised)
    assert str(raised).endswith("line before last\nlast line")


@pytest.mark.parametrize("cls", TRY_AGAIN)
def test_errors_that_may_go_away(cls: type[errors.TailtowerError]):
    raised = failed(cls.exit_code)
    assert not isinstance(raised, AirflowFailException)
    assert cls.__name__ in str(raised)


def test_every_error_class_is_covered_by_the_two_tests_above():
    declared = [cls for cls in vars(errors).values() if isinstance(cls, type)]
    assert set(declared) == {*FAIL_AT_ONCE, *TRY_AGAIN}


def test_exit_statuses_tell_the_classes_apart():
    found = error_classes()
    for cls in (*FAIL_AT_ONCE, *TRY_AGAIN):
        assert found[cls.exit_code] is cls


@pytest.mark.parametrize(
    ("status", "retried", "word"),
    [
        (1, True, "unexpected error"),
        (2, False, "command line"),
        (126, False, "TAILTOWER_PYTHON"),
        (127, False, "TAILTOWER_PYTHON"),
        (130, True, "SIGINT"),
        (137, True, "memory"),
        (143, True, "SIGTERM"),
        (255, True, "signal 127"),
    ],
)
def test_other_exit_statuses(status: int, retried: bool, word: str):
    raised = failed(status)
    assert isinstance(raised, AirflowFailException) is not retried
    assert word in str(raised)


def test_statuses_with_a_meaning_of_their_own():
    assert [status for status in range(256) if is_not_yet(status)] == [14]
    assert [status for status in range(256) if is_nothing_to_do(status)] == [20]
