"""The early check leaves a user's package as if it had not been imported, so that the run can import it."""

from tests.support.workers import run_python

FILES = {
    "keras/__init__.py": "class layers:\n    Layer = object\n",  # quick to import; deferred like the real one
    "mine/__init__.py": "import mine.sizes\nimport mine.net\n\nWIDTH = mine.sizes.WIDTH\n",
    "mine/sizes.py": "WIDTH = 3\n",
    "mine/net.py": "import keras\n\n\nclass Own(keras.layers.Layer): ...\n\n\ndef net(): ...\n",
}
CODE = """
import sys
from hookline import train
line = ["recipe=baseline", "plugins=[mine]", "model=custom", "model._target_=mine.net.net"]
(job,) = train.check(line)
assert not [name for name in sys.modules if name.partition(".")[0] == "mine"]
import mine.net
assert mine.WIDTH == mine.sizes.WIDTH == 3
"""


def test_checked_package_can_be_imported_again(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    run_python("-c", f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{CODE}")
