"""What every test shares: a quiet TensorFlow of modest size, fixed seeds, repeatable hypothesis examples."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Read by TensorFlow and Keras when they are imported, so they are set before any test module is imported.
os.environ["KERAS_BACKEND"] = "tensorflow"  # a user's own Keras config must not decide what is tested
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # one core per pytest worker; ops still run in parallel
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "2")

# Messages name programs as the shell finds them: in an active environment, by their plain names.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

# They change what is printed: a test that needs one sets it itself, on a CI server as on a desktop.
for name in ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
    os.environ.pop(name, None)

# The tiers. Full (`-m full`): whole trainings, whole processes and every combination. Long (`-m long`): proofs run by
# hand. Default: all others. A test is put into a tier here, or by its own marker.
FULL = (
    "configs/test_good_command_lines",
    "configs/test_help",
    "contract/test_every_augmentation",
    "contract/test_every_graph_hook",
    "contract/test_held_out_networks",
    "contract/test_hooks_on_several_networks",
    "contract/test_no_false_alarms",
    "contract/test_outputs_of_loaded_models.py",
    "contract/test_technique_pairs",
    "distributed/test_cluster.py",
    "distributed/test_mirrored",
    "distributed/test_nan_on_one_replica.py",
    "distributed/test_two_workers.py",
    "e2e/test_dashboard.py",
    "e2e/test_documented_commands",
    "e2e/test_hostile_runs.py",
    "e2e/test_own_model",
    "e2e/test_plugin_package",
    "hookline/test_inputs.py",
    "hookline/test_loaded.py",
    "hooks/pruning/test_sensitivity.py",
    "resume/test_every_hook_resumes",
    "resume/test_matrix",
    "scripts/planning/test_trace.py",
    "scripts/sweep/test_search.py",
    "scripts/sweep/test_signals.py",
    "scripts/test_ablate.py",
    "scripts/test_benchmark.py",
    "scripts/test_check_gradients.py",
    "scripts/test_export.py",
    "scripts/test_find_rate.py",
    "scripts/test_plan.py",
    "scripts/test_reproduce.py",
    "scripts/test_site.py",
    "scripts/test_submit.py",
    "trainer/run/test_finished.py",
    "trainer/run/test_nan_policy.py",
    "trainer/run/test_shipped.py",
    "trainer/test_catalogue.py",
    "trainer/test_deferred.py",
)
TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the full tier; pytest's own `-m` selects afterwards. A test is in one tier: long wins."""
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "full"]
        elif item.path.relative_to(TESTS).as_posix().startswith(FULL):
            item.add_marker(pytest.mark.full)


CPUS = 4  # parts of the CPU, for tests of replicas; a test that does not name one runs on the first


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Divide the CPU right after the first test module that imports TensorFlow: it fixes its devices when it starts.

    If the first such module computes while it is imported, TensorFlow has started already: the session has one CPU.
    """
    report = yield
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        (cpu,) = tf.config.list_physical_devices("CPU")
        if tf.config.get_logical_device_configuration(cpu) is None:
            with suppress(RuntimeError):
                tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * CPUS)
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude the objects that imports created from garbage collection, which Keras runs in every build.

    Half a million objects live for the whole session; scanning them takes as long as a short training.
    """
    gc.collect()
    gc.freeze()


repeatable = settings(
    max_examples=50,
    deadline=None,  # the first example traces a graph, the others do not
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("repeatable", repeatable)
settings.register_profile("thorough", repeatable, max_examples=1000)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def seed() -> int:
    """Reset the seeds of Python, NumPy and TensorFlow before each test, and return the seed.

    A test that has not imported TensorFlow is left alone: importing it here would cost seconds.
    """
    if "tensorflow" in sys.modules:
        import keras

        keras.utils.set_random_seed(0)
    return 0


@pytest.fixture(autouse=True, scope="session")
def a_choice_of_groups_is_composed_once() -> Iterator[None]:
    """Cache what Hydra composes, by files and group choices: each takes 0.2 s, and nobody changes the result."""
    module = sys.modules.get("hookline.trainer.config.command")
    if module is None:
        yield
        return
    compose, known = module.Composer.compose, {}

    def composed(composer, overrides):
        key = (str(composer.loader.get_search_path()), composer.config_name, *overrides)
        if key not in known:
            known[key] = compose(composer, overrides)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Composer, "compose", composed)
        yield


@pytest.fixture(autouse=True, scope="module")
def graphs_go_with_their_module() -> Iterator[None]:
    """Release the graphs of a test module at its end; collecting garbage among thousands takes seconds."""
    if "tensorflow" not in sys.modules:
        yield
        return
    from hookline.trainer.run.machine import released_graphs

    with released_graphs():
        yield
