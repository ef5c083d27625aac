"""The models of tests/model have the same steps as the C core; ci/test runs the models."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODELS = sorted((ROOT / "tests/model").glob("*.pml"))


def names(pattern, files):
    return {name for file in files for name in re.findall(pattern, file.read_text())}


def test_steps_of_the_core_are_steps_of_the_models():
    core = names(r'PP_STEP\("(\w+)"\)', sorted((ROOT / "csrc").rglob("*.[ch]")))
    assert core
    assert core == names(r"\bSTEP\((\w+)\)", MODELS) - {"name"}  # of its definition


def test_every_way_to_break_a_model_is_tried():
    named = set()
    for model in MODELS:
        broken = r"broken on purpose.*?--mutants\):(.*?)\.\n"
        listed = re.search(broken, model.read_text(), re.DOTALL)
        assert listed, f"{model} names no ways to break it"
        named |= {(model.stem, name) for name in re.findall(r"[A-Z_]+", listed[1])}
    check = (ROOT / "tests/model/check").read_text()
    assert named == set(re.findall(r"^ +mutant (\w+) -D(\w+)", check, re.MULTILINE))
