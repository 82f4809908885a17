"""The JSON Schemas of what ``--format json`` writes: reports, and diagnoses."""

from __future__ import annotations

import json
from typing import Any

from making.definitions import Definitions, described, document, object_of
from onnxfix.diagnosis.records import Culprit, Diagnosis, NodeError, OutputComparison
from onnxfix.files.lazy import Pending
from onnxfix.proof.verdict import Status, Verdict
from onnxfix.report.findings import Picture
from onnxfix.report.render import diagnosis
from onnxfix.report.report import SCHEMA, UNWRITTEN, Report
from onnxfix.report.summary import Summary
from onnxfix.tensorrt.reading import Reading
from onnxfix.tensorrt.records import Partition, TrtBuild
from onnxfix.verbs.difference.records import ModelDifference
from onnxfix.verbs.intake import Intake, Stopped

RECORDS = (Reading, TrtBuild, Partition, Pending, Intake, Stopped, Picture, Verdict, ModelDifference)
KNOWN = {"Status": Status, **{kind.__name__: kind for kind in RECORDS}}
"""What modules import for type checkers only, by name."""
TEXTS = {"type": "array", "items": {"type": "string"}}
ERROR = object_of({"path": {"type": "string"}, "message": {"type": "string"}})
REPORT = f"report-{SCHEMA}.schema.json"
DIAGNOSIS = f"diagnosis-{diagnosis.SCHEMA}.schema.json"


def schemas() -> dict[str, str]:
    """The text of each schema by the name of its file."""
    made = {REPORT: report_schema(), DIAGNOSIS: diagnosis_schema()}
    return {name: json.dumps(schema, indent=2) + "\n" for name, schema in made.items()}


def report_schema() -> dict[str, Any]:
    """The document of ``check``, ``apply`` and ``verify``; ``#/$defs/Line`` is a line of ``--format jsonl``."""
    definitions = Definitions(KNOWN, {"Report": UNWRITTEN})
    summary = definitions.of(Summary)
    definitions.of(Report)
    report = definitions.made["Report"]
    derived = {
        "schema": {"const": SCHEMA},
        "exit_code": {"enum": [0, 1, 2, 3]},
        "versions": {"type": "object", "additionalProperties": {"type": "string"}},
        "summary": summary,
    }
    definitions.made["Report"] = _with(report, derived, first=True)
    failed = object_of({"path": {"type": "string"}, "error": {"type": "string"}})
    warning = object_of({"warning": {"type": "string"}})
    definitions.made["Line"] = {"anyOf": [{"$ref": "#/$defs/Report"}, failed, warning]}
    root = object_of(
        {
            "reports": {"type": "array", "items": {"$ref": "#/$defs/Report"}},
            "errors": {"type": "array", "items": ERROR},
            "warnings": TEXTS,
        },
        {
            "description": "What check, apply and verify write with --format json: a report for each model, what went "
            "wrong with the others (an empty path is the call as a whole), and warnings about the installation."
        },
    )
    return document(REPORT, "Report of onnxfix", root, definitions)


def diagnosis_schema() -> dict[str, Any]:
    """``diagnose``."""
    definitions = Definitions(KNOWN, {"Diagnosis": ("environment",)})
    root = definitions.record(Diagnosis)
    node, culprit = definitions.made["NodeError"], definitions.made["Culprit"]
    text = {"type": "string"}
    names = {"node": text, "op_type": text, "output": text}
    amplification = definitions.of(float | None)
    definitions.made["NodeError"] = _with(
        _with(node, names, first=True),
        {"amplification": {**amplification, **described(NodeError.amplification)}},
    )
    own = {name: schema for name, schema in culprit["properties"].items() if name != "error"}
    definitions.made["Culprit"] = _with(definitions.made["NodeError"], own, described(Culprit))
    same = {"same": {"type": "boolean", **described(OutputComparison.same)}}
    definitions.made["OutputComparison"] = _with(definitions.made["OutputComparison"], same)
    derived = {
        "schema": {"const": diagnosis.SCHEMA},
        "exit_code": {"enum": [0, 1, 2, 3]},
        "versions": {"type": "object", "additionalProperties": text},
    }
    return document(DIAGNOSIS, "Diagnosis of onnxfix", _with(root, derived, first=True), definitions)


def _with(
    schema: dict[str, Any],
    properties: dict[str, Any],
    more: dict[str, Any] | None = None,
    *,
    first: bool = False,
) -> dict[str, Any]:
    """An object with further keys, behind its own or ``first``."""
    own = schema["properties"]
    joined = {**properties, **own} if first else {**own, **properties}
    return object_of(joined, {"description": schema.get("description", ""), **(more or {})})
