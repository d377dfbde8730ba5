"""Imports go down only; what must start fast or run without Ray imports neither ray nor torch at module level."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted((ROOT / "tuner").rglob("*.py"))
    if path.name != "__init__.py"
}
# The rooms from the ground up, each with what it may import of `tuner`, at module level or inside a function.
ALLOWED = {
    "tuner.errors": set(),
    "tuner.record.files": set(),
    "tuner.record.events": set(),
    "tuner.record.journal": {"errors", "events", "files"},
    "tuner.spec.domains": set(),
    "tuner.record.kept": set(),
    "tuner.engine.failures": set(),
    "tuner.engine.retries": {"engine.failures", "events"},
    "tuner.engine.ahead": set(),
    "tuner.engine.alone": set(),
    "tuner.engine.constants": set(),
    "tuner.engine.control": set(),
    "tuner.engine.imported_late": {"engine.constants"},
    "tuner.engine.machine": set(),
    "tuner.engine.stage": set(),
    "tuner.engine.trials": set(),
    "tuner.engine.trainable": set(),
    "tuner.engine.rungs": {"rules"},
    "tuner.engine.shares": {"engine.control"},
    "tuner.engine.nodes": {"engine.control", "engine.shares", "resources"},
    "tuner.engine.warm": {"engine.nodes"},
    "tuner.engine.watch": {"engine.nodes"},
    "tuner.engine.controller": {
        "engine.columns", "engine.control", "engine.failures", "engine.nodes", "engine.retries", "engine.trials",
        "engine.warm", "engine.watch",
    },
    "tuner.engine.halt": {"errors"},
    "tuner.engine.loopback": {"engine.constants"},
    "tuner.engine.signals": set(),
    "tuner.record.checkpoints": {"errors", "files"},
    "tuner.record.lock": {"errors", "files"},
    "tuner.record.ledger": {"events", "journal"},
    "tuner.drive.saved": {"experiment", "resume.storage", "trust"},
    "tuner.record.storage": {"errors", "files"},
    "tuner.spec.experiment": {"errors", "events", "files", "resume.storage"},
    "tuner.space": {"domains", "errors", "training.data"},
    "tuner.drive.trust": {"errors", "space"},
    "tuner.spec.facts": {"domains", "experiment", "space"},
    "tuner.record.records": {"events", "kept"},
    "tuner.record.standing": {"experiment", "records"},
    "tuner.record.foreign": {"errors", "events", "experiment", "files", "journal", "records"},
    "tuner.record.reading": {"errors", "events", "files", "journal", "records"},
    "tuner.record.results": {"errors", "experiment", "foreign", "kept", "reading", "records", "resume.lock", "views.standing"},
    "tuner.wandb_mirror": {"errors", "events", "experiment", "journal", "resume.lock"},
    "tuner.spec.resources": {"engine.machine", "errors", "experiment"},
    "tuner.engine.cluster": {"errors"},
    "tuner.engine.probe": {"errors", "experiment", "space"},
    "tuner.spec.rules": {"experiment"},
    "tuner.drive.incremental": {"experiment", "rules"},
    "tuner.drive.explain": {"engine.rungs", "incremental"},
    "tuner.drive.sampling": {"domains", "experiment", "space"},
    "tuner.drive.searchers": {"domains", "errors", "experiment", "sampling", "space"},
    "tuner.drive.schedulers": {"domains", "engine.rungs", "errors", "experiment", "incremental", "space"},
    "tuner.record.columns": set(),
    "tuner.drive.decisions": {
        "engine.columns", "engine.halt", "engine.stage", "engine.trials", "errors", "experiment", "explain", "journal",
        "resume.ledger", "sampling",
    },
    "tuner.drive.stage": {"decisions", "engine.stage", "resume.ledger"},
    "tuner.drive.saves": {"engine.trials", "errors", "events", "experiment", "resume.checkpoints"},
    "tuner.drive.replay": {
        "decisions", "engine.stage", "events", "experiment", "resume.ledger", "resume.saves", "resume.stage",
    },
    "tuner.drive.proposals": {"engine.trials", "errors", "experiment", "journal", "resume.ledger", "sampling"},
    "tuner.training.nvml": set(),
    "tuner.gpus": {"errors", "events", "journal", "nvml", "records"},
    "tuner.engine.output": set(),
    "tuner.engine.reports": {"engine.columns", "engine.output", "training.usage"},
    "tuner.engine.workers": {"training.group"},
    "tuner.drive.trial": {
        "engine.columns", "engine.reports", "engine.workers", "resume.checkpoints", "space", "training.group",
        "training.loop", "training.parallel", "training.share",
    },
    "tuner.drive.callbacks": {"decisions", "engine.halt", "engine.retries", "journal"},
    "tuner.drive.answer": {
        "domains", "engine.columns", "experiment", "files", "journal", "records", "results", "resume.checkpoints",
        "space", "training.data", "training.loop", "trial",
    },
    "tuner.drive.progress": {"errors", "experiment"},
    "tuner.drive.console": {
        "answer", "domains", "engine.columns", "experiment", "records", "resume.storage", "sampling", "session",
    },
    "tuner.drive.assembly": {
        "callbacks", "decisions", "engine.controller", "engine.halt", "engine.nodes", "engine.probe",
        "engine.retries", "engine.trainable", "events", "experiment", "journal", "progress", "proposals", "resources",
        "resume.ledger", "resume.replay", "schedulers", "searchers", "space", "trial",
    },
    "tuner.drive.driver": {
        "engine.ahead", "engine.alone", "engine.loopback", "engine.nodes", "engine.probe", "engine.signals",
        "errors", "experiment", "journal", "resources", "space",
    },
    "tuner.drive.session": {
        "answer", "assembly", "driver", "engine.cluster", "errors", "events", "experiment", "facts", "journal",
        "report", "resources", "results", "resume.saved", "resume.storage", "schedulers", "searchers", "space",
        "training.data", "wandb_mirror",
    },
    "tuner.train": {
        "answer", "errors", "experiment", "files", "results", "resume.checkpoints", "space", "training.data",
        "training.group", "training.launch", "training.loop", "training.parallel", "trial", "trust",
    },
    "tuner.views.audit_record": {"errors", "files", "records", "results"},
    "tuner.audit": {
        "errors", "experiment", "files", "records", "results", "resume.checkpoints", "train", "trust",
        "views.audit_record",
    },
    "tuner.views.labels": {"answer", "errors", "kept", "records"},
    "tuner.views.tables": {"experiment", "records", "results", "rules", "views.standing"},
    "tuner.views.history": {"results", "views.labels"},
    "tuner.views.parallel": {"answer", "kept", "records", "results", "views.labels"},
    "tuner.serve.client": set(),
    "tuner.views.slices": {"kept", "records", "results", "views.labels", "views.parallel"},
    "tuner.views.contour": {"errors", "results", "views.labels", "views.parallel"},
    "tuner.views.importance": {"errors", "results", "views.labels", "views.parallel"},
    "tuner.views.timeline": {"kept", "records", "results", "views.labels"},
    "tuner.views.alternatives": {"errors", "results", "views.whatif"},
    "tuner.views.whatif": {"errors", "experiment", "kept", "records", "results", "rules"},
    "tuner.views.whatif_figure": {"records", "results", "views.labels", "views.whatif"},
    "tuner.views.one_trial": {"files", "records", "results", "views.labels", "views.tables", "views.timeline"},
    "tuner.views.figures": {
        "records", "results", "views.history", "views.labels", "views.parallel", "views.slices", "views.timeline",
    },
    "tuner.report": {
        "answer", "errors", "figures", "files", "records", "results", "views.alternatives", "views.audit_record",
        "views.contour", "views.parallel", "views.tables", "views.whatif",
    },
    "tuner.serve.tries": set(),
    "tuner.serve.guard": {"serve.tries"},
    "tuner.serve.bounds": {"serve.guard"},
    "tuner.serve.secret": {"errors"},
    "tuner.serve.state": {"errors"},
    "tuner.serve.connections": {"serve.bounds"},
    "tuner.serve.stream": {"files", "serve.guard"},
    "tuner.serve.page": set(),
    "tuner.serve.store": {
        "errors", "experiment", "figures", "files", "foreign", "reading", "results", "resume.lock", "serve.answers",
        "views.tables",
    },
    "tuner.serve.answers": {"journal"},
    "tuner.serve.questions": {
        "errors", "results", "serve.answers", "views.contour", "views.importance", "views.standing", "views.whatif",
        "views.whatif_figure",
    },
    "tuner.serve.costly": {"serve.bounds", "serve.guard", "serve.secret"},
    "tuner.serve.insight": {
        "errors", "results", "serve.answers", "serve.control", "serve.costly", "serve.guard", "serve.questions",
        "serve.store", "views.audit_record", "views.one_trial", "views.whatif",
    },
    "tuner.serve.head": set(),
    "tuner.serve.check": {"errors", "experiment", "run"},
    "tuner.serve.options": {"errors", "experiment", "space"},
    "tuner.serve.queue": {"errors", "experiment", "files", "resources", "serve.options"},
    "tuner.serve.older": {"errors", "experiment", "serve.cluster", "serve.options", "serve.queue"},
    "tuner.serve.cluster": {"errors", "files", "serve.secret"},
    "tuner.serve.jobs": {"engine.nodes", "errors", "resources", "serve.cluster"},
    "tuner.serve.searches": {
        "errors", "experiment", "serve.check", "serve.jobs", "serve.older", "serve.options", "serve.queue",
        "serve.secret",
    },
    "tuner.serve.control": {
        "experiment", "results", "resume.lock", "serve.answers", "serve.guard", "serve.options", "serve.queue",
        "serve.searches", "serve.store", "serve.tries", "space",
    },
    "tuner.serve.app": {
        "errors", "reading", "serve.answers", "serve.bounds", "serve.control", "serve.guard", "serve.insight",
        "serve.page", "serve.searches", "serve.store", "serve.stream", "views.tables",
    },
    "tuner.serve.__main__": {
        "errors", "experiment", "serve.app", "serve.connections", "serve.guard", "serve.jobs", "serve.searches",
        "serve.secret", "serve.state",
    },
    "tuner.run": {
        "console", "driver", "engine.signals", "errors", "experiment", "resume.lock", "resume.saved", "session",
        "space", "trust", "wandb_mirror",
    },
}  # fmt: skip
TRAINING = {module for module in FILES if module.startswith("tuner.training.")}
ALLOWED |= {
    module: {"errors", "nvml", "space"} | {name.removeprefix("tuner.") for name in TRAINING} for module in TRAINING
}
WITHOUT_RAY_AND_TORCH = [
    "tuner.run", "tuner.space", "tuner.spec.domains", "tuner.spec.experiment", "tuner.record.journal", "tuner.record.records", "tuner.record.results",
    "tuner.drive.trust", "tuner.errors", "tuner.record.files", "tuner.record.storage", "tuner.spec.facts", "tuner.record.checkpoints",
    "tuner.record.ledger", "tuner.record.lock", "tuner.drive.saved", "tuner.engine.failures", "tuner.wandb_mirror",
    "tuner.train",
    "tuner.training.data", "tuner.spec.resources", "tuner.drive.answer", "tuner.views.labels", "tuner.views.tables",
    "tuner.views.history", "tuner.engine.retries", "tuner.record.columns", "tuner.training.nvml", "tuner.engine.output",
    "tuner.gpus", "tuner.training.usage", "tuner.training.share", "tuner.views.parallel", "tuner.views.figures",
    "tuner.views.slices", "tuner.views.contour", "tuner.views.importance", "tuner.views.timeline", "tuner.spec.rules",
    "tuner.record.kept", "tuner.record.standing", "tuner.views.alternatives", "tuner.views.whatif", "tuner.views.whatif_figure",
    "tuner.views.one_trial", "tuner.report", "tuner.audit", "tuner.views.audit_record", "tuner.record.foreign",
    "tuner.record.reading", "tuner.serve.insight", "tuner.serve.app", "tuner.serve.store", "tuner.serve.__main__",
    "tuner.serve.client", "tuner.serve.control", "tuner.serve.searches", "tuner.serve.queue", "tuner.serve.jobs",
    "tuner.serve.cluster", "tuner.serve.check", "tuner.serve.options", "tuner.serve.secret", "tuner.serve.state",
    "tuner.serve.tries", "tuner.serve.older", "tuner.serve.questions", "tuner.serve.costly",
]  # fmt: skip


def is_for_types_alone(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports_of(nodes, at_module_level):
    """The modules that the nodes import, those for type checkers left out."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name their module in full"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not is_for_types_alone(node):
            inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            if not (inside and at_module_level):
                yield from imports_of(ast.iter_child_nodes(node), at_module_level)


def imported(module, at_module_level=False):
    return set(imports_of(ast.parse(FILES[module].read_text()).body, at_module_level))


def packages(module, at_module_level):
    return {name.partition(".")[0] for name in imported(module, at_module_level)}


@pytest.mark.parametrize("module", sorted(FILES))
def test_a_room_imports_only_rooms_below_it(module):
    assert module in ALLOWED, f"{module} is new: say here what it may import"
    others = {name.removeprefix("tuner.") for name in imported(module) & set(FILES)}
    assert others <= ALLOWED[module], f"{module} may not import {', '.join(sorted(others - ALLOWED[module]))}"


def test_no_imports_go_in_a_circle():
    left = {module: imported(module) & set(FILES) for module in FILES}
    while left:
        ground = [module for module, names in left.items() if not names & set(left)]
        assert ground, f"a circle among {', '.join(sorted(left))}"
        for module in ground:
            del left[module]


def test_the_table_names_no_module_that_is_gone():
    assert set(ALLOWED) <= set(FILES)


@pytest.mark.parametrize("module", WITHOUT_RAY_AND_TORCH)
def test_what_reads_or_starts_fast_imports_neither_ray_nor_torch_at_module_level(module):
    assert not packages(module, at_module_level=True) & {"ray", "torch"}


@pytest.mark.parametrize("module", sorted(TRAINING))
def test_training_knows_no_ray(module):
    assert "ray" not in packages(module, at_module_level=False)


@pytest.mark.parametrize("module", sorted(FILES))
def test_only_trial_workers_session_answer_and_train_meet_training(module):
    meets = any(name.startswith("tuner.training") for name in imported(module))
    may = {"tuner.drive.trial", "tuner.drive.session", "tuner.drive.answer", "tuner.train"} | {
        "tuner.engine.workers",
        "tuner.engine.reports",
    }
    assert not meets or module in may | TRAINING


def test_only_the_driver_starts_ray():
    def starts(path):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        return any(isinstance(f, ast.Attribute) and ast.unparse(f) in ("ray.init", "ray.shutdown") for f in calls)

    assert [module for module, path in FILES.items() if starts(path)] == ["tuner.drive.driver"]


def test_spaces_that_ship_import_nothing_of_the_search():
    for path in (ROOT / "search_spaces").glob("*.py"):
        names = set(imports_of(ast.parse(path.read_text()).body, at_module_level=False))
        ours = {name for name in names if name in FILES}
        assert ours <= {"tuner.space", "tuner.training.data"}, path
