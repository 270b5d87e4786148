"""Untrusted files are read as arrays within their bounds, and nothing else is done with them."""

import io
import json
import zipfile

import h5py
import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

from hookline.trainer.run.initial_weights import MEMBER, open_weights
from tests.support.refusals import assert_refused

KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3)


def read(path):
    with open_weights(path) as layers:
        return {layer.path: [each.read() for each in layer.tensors.values()] for layer in layers}


@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5", "a.h5"])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_what_keras_saves_is_read_by_layer(name, tmp_path):
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
    "a group": (".h5", hdf5(lambda group: group.create_group("0"))),
}


def test_a_hostile_file_is_refused_in_a_line_and_no_link_is_followed(tmp_path):
    for ending, content in HOSTILE.values():
        path = tmp_path / f"a{ending}"
        path.write_bytes(content)
        assert_refused(rf"a{ending} cannot be read: .*{ending} file", read, path)
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = KERNEL
    path = tmp_path / "a.h5"
    path.write_bytes(hdf5(lambda group: group.__setitem__("0", h5py.ExternalLink(str(tmp_path / "other.h5"), "/x"))))
    assert_refused("links to somewhere else", read, path)


def test_links_in_a_circle_end_and_a_claimed_size_costs_nothing(tmp_path):
    def change(group):
        group.create_dataset("0", (2**20, 2**20), "f4", chunks=(2**10, 2**10), compression="gzip")
        group.parent["again"] = group.parent.parent  # a hard link

    path = tmp_path / "a.h5"
    path.write_bytes(hdf5(change))
    with open_weights(path) as (layer,):
        assert (layer.path, layer.tensors["0"].shape) == ("dense", (2**20, 2**20))
