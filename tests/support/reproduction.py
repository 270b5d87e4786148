"""Targets without training: a file with a few, and a session whose runs are fakes."""

from pathlib import Path

import yaml

from hookline.scripts.reproduce import Options, Session

FAKE = Path(__file__).parent / "fake_measured.py"
ACCURACY = {"run": "bnn", "metric": "metric/accuracy", "as": "percent"}
TARGETS = {
    "first": {
        "title": "a binary network",
        "recipe": "bnn",
        "data": "digits",
        "seeds": [0, 1, 2],
        "runs": {"bnn": ["recipe=bnn"], "twin": ["recipe=baseline"]},
        "measures": {"accuracy": ACCURACY, "error": {**ACCURACY, "as": "error"}, "twin": {**ACCURACY, "run": "twin"}},
        "goals": [
            {"measure": "accuracy", "at_least": 90.5, "source": "Somebody 2016"},
            {"measure": "error", "at_most": 8.5, "source": "Somebody 2016"},
            {"measure": "accuracy", "at_least": "twin"},
        ],
    },
    "second": {
        "title": "fewer weights",
        "recipe": "frozen_mask",
        "data": "digits",
        "seeds": [0],
        "runs": {"pruned": ["recipe=frozen_mask", "init_from={twin}"], "twin": {"of": "first", "variant": "twin"}},
        "measures": {
            "error": {"run": "pruned", "metric": "metric/accuracy", "as": "error"},
            "times": {"run": "pruned", "summary": "hooks.prune.total.times_fewer", "as": "number"},
        },
    },
    "third": {
        "title": "a larger network",
        "recipe": "bnn",
        "data": "MNIST",
        "needs": ["mnist"],
        "seeds": [0],
        "runs": {"bnn": ["recipe=bnn", "data=mnist", "data.path={mnist}"]},
        "measures": {"accuracy": ACCURACY},
    },
}


def write_targets(path, content=None):
    path.write_text(yaml.safe_dump(TARGETS if content is None else content, sort_keys=False))
    return path


def open_session(directory, only="*", lines=None, content=None):
    """Return a session in a directory; what it says goes to `lines`; `content` is of the file of targets."""
    targets = write_targets(directory / "targets.yaml", content)
    options = Options(f"{directory}/out", only=only, results=f"{directory}/results.json", targets=str(targets))
    session = Session(options, [].append if lines is None else lines.append, FAKE)
    session.checks = False
    return session
