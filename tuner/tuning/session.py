"""Runs a search: `run_search` has all steps of a session in order, from the caller's request to the printed answer.

The first run of a search is a session, and so is each `--resume`. While Ray starts, this process and Ray's workers
import Ray Tune, and torch if the space uses it. So this module's top imports neither; each step imports what it needs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from tuner.core.events import ExperimentResumed, ExperimentStarted
from tuner.engine.local.process_state import process_state
from tuner.engine.processes import launch
from tuner.errors import InterruptedEarly, RequestError, say
from tuner.record.data_folders import remember, remember_command
from tuner.record.format import JOURNAL
from tuner.record.journal import Journal
from tuner.record.saved_experiment import BEGUN, save_experiment
from tuner.record.storage.files import sync, why_unsafe
from tuner.record.storage.lock import only_driver
from tuner.record.storage.object_store import ObjectStore, Uploader
from tuner.spec.command import is_command
from tuner.spec.experiment import Experiment, Options, is_uri
from tuner.spec.patience import STARTING, patience
from tuner.spec.resources import resources_of
from tuner.spec.spaces import LoadedSpace, mentions_torch
from tuner.tuning.call import Request, SearchCall
from tuner.tuning.resume.loading import gone, load_resumed

if TYPE_CHECKING:
    from tuner.tuning.answer.result import SearchResult


def run_search(call: SearchCall) -> SearchResult | None:
    """Runs a search, new or resumed, and prints its answer; a dry run prints the plan and returns None.

    Raises:
        RequestError: the request is wrong, Ray does not start, no report has the metric, or a file cannot be written.
        KeyboardInterrupt: interrupted before or after the trials, or twice, or while the journal could not be written.
    """
    if not call.dry_run:
        say("resuming a search" if call.resume else STARTING)
    with ExitStack() as stack:
        if not (call.dry_run or call.resume or call.given.get("address")):
            stack.enter_context(launch.root(imports_of(call.space, call.given.get("space", ""))))
        with patience("importing Ray"):
            stack.enter_context(process_state())
            from tuner.engine.local.signals import give_up, signals_to
            from tuner.tuning import driver
        stack.enter_context(signals_to(give_up))

        # For a resume, load the experiment, check that its code may run, and lock its folder.
        resumed = load_resumed(call, stack) if call.resume else None

        # Start Ray here, except for a dry run or a cluster; meanwhile import Ray Tune, and torch if the space uses it.
        default = resumed.experiment if resumed else call.space.options if call.space else Options()
        options = call.options_over(default)
        if not (options.address or call.dry_run):
            imports = imports_of(call.space, resumed.space if resumed else options.space)
            stack.enter_context(driver.ray_here(options, imports, lambda: call.begun))
        from tuner.tuning.checks import preflight
        from tuner.tuning.checks.request import checked, load_data
        from tuner.tuning.output import console

        # Find the space and check the request. The checked request names the searcher and the scheduler.
        try:
            request = checked(call, resumed)
            call.begun = request.experiment
            if call.dry_run:
                plan = console.plan(request)
                tried = not resumed and call.preflight
                say(*plan, *([f"preflight   {preflight.rehearse(request)}"] if tried else []))
                return None
            with patience("reading the space's data"):
                request = load_data(request, trusted=call.trust)
            is_checked = not resumed and call.preflight
            request = preflight.check(request) if is_checked else preflight.packed(request)
        except KeyboardInterrupt as error:
            if resumed or isinstance(error, InterruptedEarly):
                raise
            raise InterruptedEarly("interrupted before the first trial; no folder was made") from None
        experiment = request.experiment
        say(*console.heading(request))
        if experiment.address:
            stack.enter_context(driver.ray_at(experiment, request.loaded_space))
        resources = request.resources or resources_of(experiment, driver.nodes())

        remember(experiment.data_dir)
        if is_command(experiment.space):
            remember_command(experiment.space)
        # Make a new search's folder. Before the first trial, write what a resume needs.
        if not resumed:
            make_folder(experiment)
            stack.enter_context(only_driver(experiment.folder))
        if is_uri(experiment.results):  # an object store gets copies of the folder while the search runs
            stack.enter_context(Uploader(ObjectStore(experiment.results), experiment.name, experiment.folder))
        if why := why_unsafe(experiment.folder):
            lost = "a restart or a power failure may lose this search, a kill does not"
            say(f"NOTE: {experiment.folder.parent}: {why}; {lost}")
        journal = open_journal(request)
        from tuner.tuning.answer.result import SearchResult, ending, save_answer
        from tuner.tuning.assembly import assemble
        from tuner.tuning.output.wandb_mirror import mirrored

        # Run: Ray asks the searcher for settings, trains them in workers, and asks the scheduler after each report.
        mirror = stack.enter_context(mirrored(experiment, request.wandb_mode))
        with closing(journal):
            assemble(request, journal, resources, call.table).run()
        if journal.lost:
            # The journal could not be written before the interrupt, so the answer cannot be written either.
            raise InterruptedEarly(f"interrupted; {why}") if (why := gone(experiment.folder)) else KeyboardInterrupt

        # Answer: write `best/`, trials.csv and the report; print the answer before W&B and Ray end, which takes time.
        record, best = save_answer(request, resources)
        mirror.hurry = record.state == "interrupted"
        say(*ending(request, record, best))
        return SearchResult(experiment.folder, record.state, record)


def imports_of(own: LoadedSpace | None, name: str) -> Sequence[str]:
    """Returns the large modules that the trials import: of the caller's `own` space, else of the space `name`."""
    torch = bool(own.space.task or "torch" in sys.modules) if own else mentions_torch(name)
    return ("ray.tune", "torch") if torch else ("ray.tune",)


def make_folder(experiment: Experiment) -> None:
    """Creates the folder of a new experiment; raises a RequestError if another driver has just created it."""
    folder = experiment.folder
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise RequestError(f"--name {folder.name}: {folder} already exists; give another name") from None
    for each in missing:
        sync(each.parent)  # otherwise a power failure could take the folder with all that is in it


def open_journal(request: Request) -> Journal:
    """Opens the journal; writes experiment.json and the session's first event (the options that a replay needs)."""
    experiment, folder = request.experiment, request.experiment.folder
    save_experiment(experiment, folder, request.facts)
    journal = Journal(folder / JOURNAL, len(request.history))
    own = request.facts.get("id"), experiment.name, experiment.num_samples, experiment.max_epochs
    sha256 = request.loaded_space.sha256
    again = request.history
    journal.write(ExperimentResumed(*own, sha256) if again else ExperimentStarted(*own, sha256, request.past or None))
    if not request.facts.get(BEGUN):
        # The disk gets the first event, then BEGUN; only then do trials start. Without BEGUN, no trial has started, so
        # a resume may accept an empty journal. Otherwise it must refuse one: the events of trials are lost.
        journal.sync()
        save_experiment(experiment, folder, {**request.facts, BEGUN: True})
    return journal
