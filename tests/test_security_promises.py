"""Each promise of SECURITY.md has a test: a promise without one fails here, and so does a test that is gone."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from support.paths import ROOT

PAGE = ROOT / "SECURITY.md"
_PROMISE = re.compile(r"^- \*\*(.+?)\.?\*\*", re.M)

PROMISES: dict[str, tuple[str, ...]] = {
    "Nothing in a model runs as code": (
        "test_security_promises.py::test_no_library_is_loaded_and_no_pickle_read",
        "proof/test_input_files.py::test_what_cannot_be_read_gets_one_line",
    ),
    "External data stays in the model's folder": (
        "graph/test_overlay.py::test_external_data_outside_is_refused",
        "files/test_hostile_tensors.py::test_a_location_that_is_there_twice_brings_no_foreign_file",
        "files/test_hostile_tensors.py::test_a_hard_link_may_be_a_file_of_another_folder",
    ),
    "Only what was named is written": (
        "files/test_output_files.py::test_the_output_is_not_the_inputs",
        "files/test_output_files.py::test_two_options_do_not_name_one_file",
        "files/test_output_files.py::test_a_pipe_is_not_replaced",
        "files/test_output_files.py::test_external_data_is_not_replaced",
    ),
    "Writes are not redirected": (
        "files/test_hostile_folder.py::test_at_every_step",
        "files/test_hostile_folder.py::test_another_users_link",
        "files/test_hostile_folder.py::test_a_candidate_that_is_swapped_while_a_rung_reads_it",
        "files/test_files_left_on_disk.py::"
        "test_a_file_that_is_there_keeps_its_mode_and_new_ones_beside_it_are_as_secret_as_their_source",
    ),
    "Names are only shown": (
        "cli/test_cli.py::test_names_do_not_reach_the_terminal_as_commands",
        "cli/test_layers_command.py::test_names_cannot_disturb_the_terminal",
        "fleet/test_journal_forged.py::test_no_text_of_a_line_reaches_the_terminal_as_it_is",
    ),
    "Structure is bounded": (
        "files/test_hostile_tensors.py::test_a_model_that_fills_memory_is_refused_before_it_is_parsed",
        "files/test_hostile_tensors.py::test_the_whole_process_stays_small",
    ),
    "Time is bounded, if you say so": ("verbs/test_time_limit.py::test_a_model_that_never_ends_is_given_up",),
    "A child's death is a line": (
        "test_sandbox.py::test_worker_survives",
        "test_sandbox.py::test_fork_survives",
        "test_sandbox.py::test_a_hang_is_killed_in_time",
    ),
    "Children have no network": (
        "test_confinement.py::test_a_fork_has_no_sockets_but_pairs",
        "test_confinement.py::test_a_program_that_a_fork_starts_has_no_network_either",
        "test_confinement.py::test_a_worker_is_confined",
        "test_confinement.py::test_the_filter_denies_what_it_says",
    ),
    "Children leave other processes alone": ("test_confinement.py::test_a_fork_does_not_reach_this_process",),
    "Children open no private files": (
        "test_confinement.py::test_hidden_files_of_a_home_can_neither_be_read_nor_written",
        "test_confinement.py::test_what_is_named_is_open_and_its_neighbors_are_not",
        "test_confinement.py::test_the_system_is_read_only_and_temporary_files_are_not",
    ),
    "Answers of children are data": (
        "test_replies.py::test_what_is_no_data_is_refused_in_one_line",
        "test_replies.py::test_a_child_cannot_have_code_run_here",
    ),
    "A journal is not believed": (
        "fleet/test_journal_forged.py::test_what_is_no_file_is_not_waited_for",
        "fleet/test_journal_forged.py::test_a_changed_result_is_found",
        "fleet/test_journal_forged.py::test_a_line_names_the_files_of_its_task_and_no_others",
    ),
    "Rule packs can be kept out": ("engine/test_pack_switch.py::test_the_variable_keeps_packs_out",),
    "`--ray local` is local": (
        "fleet/test_ray_loopback.py::test_a_local_instance_listens_on_the_loopback_only",
    ),
}
"""Promise -> its tests, as pytest names them, from the folder tests/ on."""


def test_every_promise_has_tests_and_every_test_a_promise() -> None:
    assert _PROMISE.findall(PAGE.read_text(encoding="utf-8")) == list(PROMISES)
    assert all(PROMISES.values())


@cache
def functions(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("promise", PROMISES)
def test_the_tests_of_a_promise_exist(promise: str) -> None:
    for named in PROMISES[promise]:
        file, _, function = named.partition("::")
        assert function in functions(ROOT / "tests" / file), named


CODE = {
    "register_custom_ops_library": "a library of operators",
    "load_plugin_library": "TensorRT's plugins",
    "deregister_library": "TensorRT's plugins",
    "load_library": "TensorRT's plugins, or numpy's libraries",
    "init_libnvinfer_plugins": "TensorRT's plugins",
}


def calls(source: str) -> list[str]:
    """What loads code that a file names, and arrays that are read with pickles."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in CODE:
            found.append(node.func.attr)
        owner = node.func.value
        if node.func.attr == "load" and isinstance(owner, ast.Name) and owner.id in ("np", "numpy"):
            given = {one.arg: one.value for one in node.keywords}
            allowed = given.get("allow_pickle")
            if not (isinstance(allowed, ast.Constant) and allowed.value is False):
                found.append("load with pickles")
    return found


#: Plugins: NVIDIA's own, which the full package registers on request only, and the libraries of --plugins.
OURS = {"onnxfix/tensorrt/log.py": ["init_libnvinfer_plugins", "load_library"]}


@pytest.mark.slow
def test_no_library_is_loaded_and_no_pickle_read() -> None:
    found = {
        str(path.relative_to(ROOT)): calls(path.read_text(encoding="utf-8"))
        for path in (ROOT / "onnxfix").rglob("*.py")
    }
    assert {path: names for path, names in found.items() if names} == OURS


def test_the_search_finds_what_it_looks_for() -> None:
    assert calls("options.register_custom_ops_library(path)") == ["register_custom_ops_library"]
    assert calls("np.load(path)") == ["load with pickles"]
    assert calls("np.load(path, allow_pickle=flag)") == ["load with pickles"]
    assert calls("np.load(path, allow_pickle=False)") == []
