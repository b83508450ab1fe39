"""docs/recipes.md: every option of `efaprof record` in it exists, and every recipe says whether it was run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from recording import efaprof

RECIPES = (Path(__file__).resolve().parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")


def record_options() -> list[str]:
    """What stands between `efaprof record` and `--` in the shell blocks and the pod's command."""
    blocks = re.findall(r"^```sh\n(.*?)^```", RECIPES, re.MULTILINE | re.DOTALL)
    found = [part for block in blocks for part in re.findall(r"efaprof record (.*?)-- ", block.replace("\\\n", " "))]
    pod = re.search(r'command: \["efaprof", "record", (.*?), "--"', RECIPES)
    assert pod is not None
    every = [*found, pod[1].replace('"', "").replace(",", " ")]
    return sorted({re.sub(r"-o \S+", "-o run", " ".join(shlex.split(options, posix=False))) for options in every})


def test_there_are_recipes_for_everything_that_is_promised():
    for name in ("MPI", "torchrun", "Slurm", "Kubernetes", "vLLM", "SGLang", "TensorRT-LLM", "DeepEP"):
        (section,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", RECIPES, re.MULTILINE | re.DOTALL)
        assert section.lstrip().startswith(("*Run here*", "*Not run here.*")), name


@pytest.mark.parametrize("options", record_options())
def test_the_options_of_each_recipe_are_those_of_the_command(tmp_path, options):
    done = efaprof("record", *options.split(), "--", "true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "manifest.json").is_file()
