"""A network starts from the weights of a run or a file, whatever its layers are named, and reports what it took."""

import io
import json
import zipfile
from types import SimpleNamespace

import h5py
import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

import hookline
from hookline.trainer.errors import UserError
from hookline.trainer.network import Network, name_variables
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.initial_weights import MEMBER, by_path, held, load_file, load_run, open_weights, take_weights
from tests.support.refusals import assert_refused

layers = keras.layers
CALM = {"hooks": [{"advisor": None}]}  # which warns about small batches
GENERATOR = np.random.default_rng(1)
X = np.random.default_rng(0).normal(size=(6, 12, 4)).astype(np.float32)


def network(model):
    return Network("model", model, keras.optimizers.SGD())


def fresh(make, *arguments, **options):
    """Return a model with random weights; its layers get the next numbers in this process."""
    model = make(*arguments, **options)
    for variable in model.weights:
        if variable.dtype == "float32":
            variable.assign(GENERATOR.uniform(0.5, 1.0, variable.shape))
    return model


def plain(classes=3, width=4):
    """Return dense layers of one shape, so that shapes would not reveal a shift by one."""
    stack = [layers.Dense(width, "tanh") for _ in range(3)]
    return keras.Sequential([keras.Input((12, 4)), *stack, layers.BatchNormalization(), layers.Dense(classes)])


def named(classes=3, first="one", **options):
    inputs = keras.Input((12, 4))
    x = layers.Dense(5, name=first)(inputs)
    x = layers.BatchNormalization(name="norm", **options)(layers.Dropout(0.3)(x))
    return keras.Model(inputs, layers.Dense(classes, name="head")(x))


class Transformer(keras.Model):
    def __init__(self, classes=3):
        super().__init__()
        self.blocks = [layers.MultiHeadAttention(2, 4), layers.MultiHeadAttention(2, 4)]
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.place = self.add_weight((12, 4), name="place")
        self.head = layers.Dense(classes, name="head")

    def call(self, x):
        x = x + self.place
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = norm(x + block(x, x))
        return self.head(x[:, 0])


def transformer(classes=3):
    model = Transformer(classes)
    model(X)
    return model


def save_safetensors(model, path):
    save_file({name: each.numpy() for name, each in network(model).weights.items()}, path)


SAVED = {
    "a.keras": lambda model, path: model.save(path),
    "a.weights.h5": lambda model, path: model.save_weights(path),
    "a.safetensors": save_safetensors,
}


@pytest.mark.parametrize(
    ("make", "name"),
    [(plain, "a.keras"), (plain, "a.safetensors"), (named, "a.weights.h5"), (named, "a.safetensors")]
    + [(transformer, name) for name in SAVED],
)
def test_model_of_the_same_kind_computes_the_same_as_the_saved_one(make, name, tmp_path):
    if name == "a.safetensors":
        keras.utils.clear_session(free_memory=False)  # such a file contains only names
    before = fresh(make)
    SAVED[name](before, tmp_path / name)
    if name == "a.safetensors":
        keras.utils.clear_session(free_memory=False)
    after = network(fresh(make))
    assert np.abs(np.asarray(after.model(X)) - before(X)).max() > 1e-2
    load_file([after], str(tmp_path / name))
    np.testing.assert_array_equal(after.model(X), before(X))
    assert len(after.started_from) == 1, after.started_from


@pytest.mark.parametrize("name", ["a.keras", "a.h5"])
def test_different_numbers_of_unnamed_layers_do_not_shift_weights(name, tmp_path):
    keras.utils.clear_session(free_memory=False)
    layers.Dense(1)
    saved = fresh(plain)  # dense_1 .. dense_4
    saved.save(tmp_path / name)
    keras.utils.clear_session(free_memory=False)
    own = network(fresh(plain))  # dense .. dense_3
    load_file([own], str(tmp_path / name))
    np.testing.assert_equal(own.model.get_weights(), saved.get_weights())
    assert "by place" in own.started_from[0]


def test_head_for_other_classes_is_left_unchanged(tmp_path):
    for make in (named, plain, transformer):
        fresh(make, 7).save_weights(tmp_path / "a.weights.h5")
        own = network(fresh(make, 3))
        kernel = own.model.weights[-2 if make is not named else 6].numpy()
        load_file([own], str(tmp_path / "a.weights.h5"))
        first, left, unused = own.started_from
        assert "layers of 'model'" in first
        assert ("Left as they were: " in left, "3]" in left, "7]" in unused) == (True, True, True)
        assert any(np.array_equal(each.numpy(), kernel) for each in own.model.weights)


def test_layer_is_loaded_completely_or_not_at_all(tmp_path):
    fresh(named).save(tmp_path / "a.keras")
    own = network(fresh(named, scale=False))  # the remaining norm weights have the shapes of the file's first three
    before = own.model.get_layer("norm").get_weights()
    load_file([own], str(tmp_path / "a.keras"))
    np.testing.assert_equal(own.model.get_layer("norm").get_weights(), before)
    assert "Left as they were: norm" in own.started_from[1]


def test_names_take_precedence_over_positions_if_both_fit(tmp_path):
    def two(names):
        return keras.Sequential([keras.Input((4,)), *(layers.Dense(4, name=name) for name in names)])

    saved = fresh(two, ("a", "b"))
    saved.save(tmp_path / "a.keras")
    own = network(fresh(two, ("b", "a")))
    load_file([own], str(tmp_path / "a.keras"))
    for name in ("a", "b"):
        kernels = (each.get_layer(name).kernel.numpy() for each in (own.model, saved))
        np.testing.assert_array_equal(*kernels)
    renamed = network(fresh(two, ("c", "d")))
    load_file([renamed], str(tmp_path / "a.keras"))
    np.testing.assert_array_equal(renamed.model.get_layer("d").kernel.numpy(), saved.get_layer("b").kernel.numpy())


def test_no_matching_layer_is_refused_with_names_of_both(tmp_path):
    fresh(named, first="two").save(tmp_path / "a.keras")
    with pytest.raises(UserError, match=r"No layer of init_from=.* it has .*two.*\[4, 5\].* such as .*\[3, 9\]"):
        load_file([network(keras.Sequential([keras.Input((3,)), layers.Dense(9)]))], str(tmp_path / "a.keras"))
    with pytest.raises(UserError, match="networks model, other"):
        load_file([network(named()), Network("other", named(), keras.optimizers.SGD())], str(tmp_path / "a.keras"))
    own = network(named())
    given = by_path({name: held(np.ones(each.shape, np.int8)) for name, each in own.weights.items()})
    assert_refused("No layer", take_weights, own, given, "init_from=x")


def test_run_provides_latent_weights_instead_of_averages(monkeypatch, tmp_path):
    saved, mine = fresh(named), network(fresh(named))
    values = {name: np.array(each) for name, each in name_variables(saved.weights).items()}
    tensors = {f"network/model/{name}": each for name, each in values.items()}
    tensors |= {f"hook/ema/average/{name}": np.zeros_like(each) for name, each in values.items()}
    monkeypatch.setattr(CheckpointStore, "tags", lambda store: ["last"])
    monkeypatch.setattr(CheckpointStore, "load", lambda store, tag: SimpleNamespace(tensors=tensors))
    load_run([mine], tmp_path, "run")
    np.testing.assert_array_equal(mine.model.get_layer("head").kernel, saved.get_layer("head").kernel)


@pytest.mark.full
def test_python_trainer_starts_from_a_file_and_from_a_run(tmp_path):
    def trained(**options):
        model = named(first="one")
        model = keras.Model(model.inputs, layers.GlobalAveragePooling1D()(model.outputs[0]))
        trainer = hookline.Trainer(
            model, keras.optimizers.SGD(1e-12), "sparse_categorical_crossentropy", **options, **CALM
        )
        trainer.fit(X, np.arange(6) % 3, batch_size=6, verbose=0)
        return trainer

    saved = fresh(named)
    saved.save(tmp_path / "a.keras")
    one = trained(init_from=tmp_path / "a.keras", run_dir=tmp_path / "run")
    np.testing.assert_allclose(one.model.get_layer("head").kernel, saved.get_layer("head").kernel, atol=1e-6)
    two = trained(init_from=tmp_path / "run")
    np.testing.assert_allclose(two.model.get_layer("head").kernel, saved.get_layer("head").kernel, atol=1e-6)
    assert [line.partition(":")[0] for line in two._state.run.journal.started_from] == [f"init_from={tmp_path / 'run'}"]
    (tmp_path / "a.txt").write_text("")
    assert_refused("is a file", trained, init_from=tmp_path / "a.txt")


# Untrusted files are read as arrays within their bounds, and nothing else is done with them.

KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3)


def read(path):
    with open_weights(path) as layers:
        return {layer.path: [each.read() for each in layer.tensors.values()] for layer in layers}


@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5", "a.h5"])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_keras_files_are_read_by_layer(name, tmp_path):
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, name="inner")], name="block")
    head = keras.layers.Dense(2, name="head", dtype="float32" if name == "a.h5" else "bfloat16")
    model = keras.Sequential([keras.Input((3,)), inner, keras.layers.Dropout(0.5), head], name="whole")
    if name != "a.weights.h5":
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)  # its slots are not weights
        model.save(tmp_path / name)
    else:
        model.save_weights(tmp_path / name)
    found = read(tmp_path / name)
    wanted = {"block/inner": model.get_layer("block").weights, "head": model.get_layer("head").weights}
    for path, variables in wanted.items():
        (key,) = [each for each in found if each.endswith(path)]
        for array, variable in zip(sorted(found[key], key=np.ndim, reverse=True), variables, strict=True):
            np.testing.assert_array_equal(array.astype(np.float32), np.asarray(variable.numpy(), np.float32))
    assert len(found) == 2


def test_safetensors_are_read_by_path(tmp_path):
    arrays = {"a/kernel": KERNEL, "a/bias": np.ones(3, np.float16), "b/count": np.int64([3])}
    save_file(arrays, tmp_path / "a.safetensors", {"of": "somebody"})
    with open_weights(tmp_path / "a.safetensors") as layers:
        found = {f"{layer.path}/{name}": each.read() for layer in layers for name, each in layer.tensors.items()}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


def safetensors(**changes):
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **changes}
    header = json.dumps({"a/kernel": entry}).encode()
    return len(header).to_bytes(8, "little") + header + KERNEL.tobytes()


def hdf5(change=lambda group: None):
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        change(file.create_group("layers/dense/vars"))
    return stream.getvalue()


def keras_file(content, *, member=MEMBER, compression=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr(member, content)
        archive.writestr("config.json", '{"module": "os", "class_name": "system"}')
    return stream.getvalue()


def linked(file):
    file["link"], file.attrs["layer_names"] = h5py.SoftLink("/layers"), [b"link/dense"]


def virtual(group):
    layout = h5py.VirtualLayout((6,), "f4")
    layout[:] = h5py.VirtualSource("/etc/hostname", "x", (6,))
    group.create_virtual_dataset("0", layout)


HOSTILE = {
    "other size": (".safetensors", safetensors(data_offsets=[0, 28])),
    "beyond": (".safetensors", safetensors(data_offsets=[8, 32])),
    "before": (".safetensors", safetensors(data_offsets=[-8, 16])),
    "shape": (".safetensors", safetensors(shape=[2**40, 2**40])),
    "dtype": (".safetensors", safetensors(dtype="pickle")),
    "header": (".safetensors", (2**60).to_bytes(8, "little") + b"{}"),
    "list": (".safetensors", (2).to_bytes(8, "little") + b"[]"),
    "empty": (".h5", b""),
    "no zip": (".keras", hdf5()),
    "no weights": (".keras", keras_file(b"", member="weights")),
    "bomb": (".keras", keras_file(bytes(2**20), compression=zipfile.ZIP_DEFLATED)),
    "soft link": (".h5", hdf5(lambda group: group.__setitem__("0", h5py.SoftLink("/layers")))),
    "external data": (".h5", hdf5(lambda group: group.create_dataset("0", (6,), "f4", external="/etc/hostname"))),
    "virtual data": (".h5", hdf5(virtual)),
    "old format": (".h5", hdf5(lambda group: linked(group.file))),
    "a group": (".h5", hdf5(lambda group: group.create_group("0"))),
}


def test_hostile_file_is_refused_in_one_line_and_links_are_not_followed(tmp_path):
    for ending, content in HOSTILE.values():
        path = tmp_path / f"a{ending}"
        path.write_bytes(content)
        assert_refused(rf"a{ending} cannot be read: .*{ending} file", read, path)
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = KERNEL
    path = tmp_path / "a.h5"
    path.write_bytes(hdf5(lambda group: group.__setitem__("0", h5py.ExternalLink(str(tmp_path / "other.h5"), "/x"))))
    assert_refused("links to somewhere else", read, path)


def test_circular_links_end_and_huge_claimed_size_is_not_allocated(tmp_path):
    def change(group):
        group.create_dataset("0", (2**20, 2**20), "f4", chunks=(2**10, 2**10), compression="gzip")
        group.parent["again"] = group.parent.parent  # a hard link

    path = tmp_path / "a.h5"
    path.write_bytes(hdf5(change))
    with open_weights(path) as (layer,):
        assert (layer.path, layer.tensors["0"].shape) == ("dense", (2**20, 2**20))
