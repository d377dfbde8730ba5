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
    "tuner.files": set(),
    "tuner.journal": {"errors", "files"},
    "tuner.domains": set(),
    "tuner.kept": set(),
    "tuner.failures": set(),
    "tuner.retries": {"failures", "journal"},
    "tuner.shares": set(),
    "tuner.nodes": {"resources", "shares"},
    "tuner.recovery": {"columns", "nodes", "retries"},
    "tuner.engine": {"nodes", "recovery", "retries"},
    "tuner.halt": {"errors"},
    "tuner.signals": set(),
    "tuner.checkpoints": set(),
    "tuner.lock": {"errors"},
    "tuner.ledger": {"journal"},
    "tuner.storage": {"errors", "files"},
    "tuner.experiment": {"errors", "files", "storage"},
    "tuner.space": {"domains", "errors", "training.data"},
    "tuner.facts": {"domains", "experiment", "space"},
    "tuner.records": {"journal", "kept"},
    "tuner.standing": {"experiment", "records"},
    "tuner.foreign": {"errors", "experiment", "records"},
    "tuner.reading": {"errors", "journal", "records"},
    "tuner.results": {"experiment", "foreign", "kept", "reading", "records", "standing"},
    "tuner.wandb_mirror": {"experiment", "journal"},
    "tuner.resources": {"errors", "experiment"},
    "tuner.cluster": {"errors"},
    "tuner.probe": {"errors", "experiment", "space"},
    "tuner.rules": {"experiment"},
    "tuner.incremental": {"experiment", "rules"},
    "tuner.explain": {"incremental"},
    "tuner.sampling": {"domains", "experiment", "space"},
    "tuner.searchers": {"domains", "errors", "experiment", "sampling", "space"},
    "tuner.schedulers": {"domains", "errors", "experiment", "incremental", "space"},
    "tuner.columns": set(),
    "tuner.decisions": {"columns", "errors", "experiment", "explain", "halt", "journal", "ledger", "sampling"},
    "tuner.stage": {"decisions", "ledger"},
    "tuner.saves": {"checkpoints", "experiment", "journal"},
    "tuner.replay": {"decisions", "experiment", "journal", "ledger", "saves", "stage"},
    "tuner.proposals": {"errors", "experiment", "journal", "ledger", "sampling"},
    "tuner.nvml": set(),
    "tuner.gpus": {"errors", "journal", "nvml"},
    "tuner.output": set(),
    "tuner.reports": {"columns", "output", "training.usage"},
    "tuner.workers": {"training.group"},
    "tuner.trial": {
        "checkpoints", "columns", "reports", "space", "training.group", "training.loop", "training.parallel",
        "training.share", "workers",
    },
    "tuner.callbacks": {"decisions", "halt", "journal", "retries"},
    "tuner.answer": {
        "checkpoints", "columns", "domains", "experiment", "files", "journal", "records", "results", "space",
        "training.data", "training.loop",
        "trial",
    },
    "tuner.console": {"answer", "columns", "domains", "experiment", "records", "sampling", "session", "storage"},
    "tuner.driver": {
        "callbacks", "console", "decisions", "engine", "errors", "experiment", "halt", "journal", "ledger", "nodes",
        "probe", "proposals", "replay", "resources", "retries", "schedulers", "searchers", "signals",
        "space", "trial",
    },
    "tuner.session": {
        "answer", "cluster", "driver", "errors", "experiment", "facts", "journal", "report", "resources", "results",
        "schedulers", "searchers", "space", "storage", "training.data", "wandb_mirror",
    },
    "tuner.train": {
        "answer", "checkpoints", "errors", "results", "space", "training.data", "training.group", "training.launch",
        "training.loop", "training.parallel", "trial",
    },
    "tuner.audit_record": {"errors", "records", "results"},
    "tuner.audit": {"audit_record", "checkpoints", "errors", "files", "records", "results", "train"},
    "tuner.labels": {"answer", "kept", "records"},
    "tuner.tables": {"experiment", "records", "results", "rules", "standing"},
    "tuner.history": {"labels", "results"},
    "tuner.parallel": {"answer", "kept", "labels", "records", "results"},
    "tuner.serve.client": set(),
    "tuner.slices": {"kept", "labels", "parallel", "records", "results"},
    "tuner.contour": {"errors", "labels", "parallel", "results"},
    "tuner.importance": {"errors", "labels", "parallel", "results"},
    "tuner.timeline": {"kept", "labels", "records", "results"},
    "tuner.alternatives": {"errors", "results", "whatif"},
    "tuner.whatif": {"errors", "experiment", "kept", "records", "results", "rules"},
    "tuner.whatif_figure": {"labels", "records", "results", "whatif"},
    "tuner.one_trial": {"labels", "records", "results", "tables", "timeline"},
    "tuner.figures": {"history", "labels", "parallel", "records", "results", "slices", "timeline"},
    "tuner.report": {
        "alternatives", "answer", "audit_record", "contour", "errors", "figures", "files", "parallel", "records",
        "results", "tables", "whatif",
    },
    "tuner.serve.guard": set(),
    "tuner.serve.bounds": {"serve.guard"},
    "tuner.serve.secret": {"errors"},
    "tuner.serve.stream": set(),
    "tuner.serve.page": set(),
    "tuner.serve.store": {"errors", "experiment", "figures", "foreign", "reading", "results", "tables"},
    "tuner.serve.answers": {"journal"},
    "tuner.serve.insight": {
        "audit_record", "contour", "errors", "importance", "one_trial", "results", "serve.answers", "serve.control",
        "serve.guard", "serve.store", "standing", "whatif", "whatif_figure",
    },
    "tuner.serve.head": {"driver"},
    "tuner.serve.check": {"errors", "experiment", "run"},
    "tuner.serve.options": {"errors", "experiment", "space"},
    "tuner.serve.queue": {"errors", "experiment", "files", "resources"},
    "tuner.serve.cluster": {"errors", "files", "serve.secret"},
    "tuner.serve.jobs": {"errors", "nodes", "resources", "serve.cluster"},
    "tuner.serve.searches": {"errors", "serve.check", "serve.jobs", "serve.options", "serve.queue"},
    "tuner.serve.control": {
        "experiment", "lock", "results", "serve.answers", "serve.guard", "serve.options", "serve.queue",
        "serve.searches", "serve.store", "space",
    },
    "tuner.serve.app": {
        "errors", "serve.answers", "serve.bounds", "serve.control", "serve.guard", "serve.insight",
        "serve.page", "serve.searches", "serve.store", "serve.stream", "tables",
    },
    "tuner.serve.__main__": {
        "errors", "experiment", "serve.app", "serve.guard", "serve.jobs", "serve.searches", "serve.secret",
    },
    "tuner.run": {"console", "driver", "errors", "experiment", "lock", "session", "signals", "space", "wandb_mirror"},
}  # fmt: skip
TRAINING = {module for module in FILES if module.startswith("tuner.training.")}
ALLOWED |= {
    module: {"errors", "nvml", "space"} | {name.removeprefix("tuner.") for name in TRAINING} for module in TRAINING
}
WITHOUT_RAY_AND_TORCH = [
    "tuner.run", "tuner.space", "tuner.domains", "tuner.experiment", "tuner.journal", "tuner.records", "tuner.results",
    "tuner.errors", "tuner.files", "tuner.storage", "tuner.facts", "tuner.checkpoints", "tuner.ledger", "tuner.lock",
    "tuner.failures",
    "tuner.wandb_mirror", "tuner.train",
    "tuner.training.data", "tuner.resources", "tuner.answer", "tuner.labels", "tuner.tables", "tuner.history",
    "tuner.retries", "tuner.columns", "tuner.nvml", "tuner.output", "tuner.gpus", "tuner.training.usage",
    "tuner.training.share",
    "tuner.parallel", "tuner.figures", "tuner.slices", "tuner.contour", "tuner.importance", "tuner.timeline",
    "tuner.rules", "tuner.kept", "tuner.standing", "tuner.alternatives",
    "tuner.whatif", "tuner.whatif_figure", "tuner.one_trial", "tuner.report", "tuner.audit", "tuner.audit_record",
    "tuner.foreign", "tuner.reading", "tuner.serve.insight", "tuner.serve.app", "tuner.serve.store",
    "tuner.serve.__main__",
    "tuner.serve.client", "tuner.serve.control", "tuner.serve.searches", "tuner.serve.queue", "tuner.serve.jobs",
    "tuner.serve.cluster", "tuner.serve.check", "tuner.serve.options", "tuner.serve.secret",
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
    may = {"tuner.trial", "tuner.workers", "tuner.reports", "tuner.session", "tuner.answer", "tuner.train"}
    assert not meets or module in may | TRAINING


def test_only_the_driver_starts_ray():
    def starts(path):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        return any(isinstance(f, ast.Attribute) and ast.unparse(f) in ("ray.init", "ray.shutdown") for f in calls)

    assert [module for module, path in FILES.items() if starts(path)] == ["tuner.driver"]


def test_spaces_that_ship_import_nothing_of_the_search():
    for path in (ROOT / "search_spaces").glob("*.py"):
        names = set(imports_of(ast.parse(path.read_text()).body, at_module_level=False))
        ours = {name for name in names if name in FILES}
        assert ours <= {"tuner.space", "tuner.training.data"}, path
