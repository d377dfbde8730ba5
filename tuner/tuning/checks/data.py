"""Reads and splits a search's data, and says what the user can do where that fails."""

from __future__ import annotations

from dataclasses import replace

from tuner.errors import RequestError
from tuner.errors.users_code import place_of, place_raised
from tuner.spec.spaces import with_place
from tuner.training.data import DataError
from tuner.tuning.checks.advice import advice_on
from tuner.tuning.requests import Request


def load_data(request: Request) -> Request:
    """Reads, decodes and splits the data of a request.

    Raises:
        RequestError: data is missing or incomplete, or the space's data function fails or returns no usable data.
    """
    task = request.loaded_space.space.task
    if task is None:
        return request
    from tuner.training.sources import UnsuitableData, splits_of

    experiment, function = request.experiment, f"--space {request.experiment.space}: its data function"
    try:
        splits = splits_of(task, experiment.data_dir, experiment.seed)
    except UnsuitableData as error:
        place = place_raised(error.__cause__ and error.__cause__.__cause__) or place_of(task.data)
        raise RequestError(f"{function}{place} {error}") from error
    except DataError as error:
        raise RequestError(str(error)) from error
    except (Exception, SystemExit) as error:
        if not experiment.data_dir and misses_folder(error):
            raise RequestError(f"{function} needs a folder: give --data-dir DIR ({with_place(error)})") from error
        advice = advice_on(error) or "correct the function"
        if isinstance(error, (OSError, SystemExit)) and "--data-dir" not in advice:
            folder = (
                f"correct --data-dir {experiment.data_dir}"
                if experiment.data_dir
                else "if it needs a folder, give --data-dir DIR"
            )
            advice += f"; {folder}"
        raise RequestError(f"{function} raises {with_place(error)}; {advice}") from error
    facts = {**request.facts, "data": {"source": splits.source, "notice": splits.notice}}
    return replace(request, splits=splits, facts=facts)


def misses_folder(error: BaseException) -> bool:
    """Guesses whether a data function failed because it got None for its folder."""
    nothing = "NoneType" in str(error) and isinstance(error, (TypeError, AttributeError))
    return nothing or "None/" in str(error)  # as in "None/train.csv", from f"{data_dir}/train.csv"
