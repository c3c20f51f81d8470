"""Examine methods of one's own: `fewmore exam`."""

import json as json_format
from dataclasses import asdict
from typing import Annotated

import typer

from fewmore.cli.model_options import Json
from fewmore.cli.terminal import plain


def exam(
    methods: Annotated[
        list[str], typer.Argument(help="file.py:Class, package.module:Class or a method's name.")
    ],
    json: Json = False,
) -> None:
    """Check that methods keep to the contract: seeds, states, memory, batches, training."""
    from fewmore.methods import find

    names = [find(method).name for method in methods]  # a mistyped name is found at once
    from fewmore.research.exam import FAILED, PASSED, examine, make_case

    out = plain()
    found = []
    failed = False
    for method, name in zip(methods, names, strict=True):
        verdicts = []
        for verdict in examine(make_case(method)):
            verdicts.append(verdict)
            if not json:
                reason = f" ({verdict.reason})" if verdict.reason else ""
                out.print(f"{name}: {verdict.result}: {verdict.meaning}{reason}")
        wrong = sum(verdict.result == FAILED for verdict in verdicts)
        passed = sum(verdict.result == PASSED for verdict in verdicts)
        failed = failed or wrong > 0
        found.append({"method": name, "checks": [asdict(verdict) for verdict in verdicts]})
        if not json:
            out.print(f"{name}: {passed} checks passed, {wrong} failed")
    if json:
        typer.echo(json_format.dumps(found, indent=1, ensure_ascii=False))
    if failed:
        raise typer.Exit(2)
