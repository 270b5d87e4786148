"""TensorBoard's own server over a finished run: every promised tab has content."""

import json
import time
from urllib.parse import urlencode

import pytest
from tensorboard import default, program
from tensorboard.backend import application
from tensorboard.backend.event_processing.data_ingester import LocalDataIngester
from werkzeug.test import Client

from hookline.train import main

RUN = ("recipe=bnn", "+hooks=center_loss", "trainer.epochs=2", "trainer.compile=off", "model.units=[16,16]")
TABS = {"scalars", "custom_scalars", "images", "graphs", "distributions", "histograms", "text", "projector"}
TABS |= {"hparams", "timeseries"}
TRAIN = "tensorboard/train"


class Server:
    def __init__(self, folder):
        tensorboard = program.TensorBoard(default.get_plugins())
        arguments = ["--logdir", str(folder), "--load_fast", "false", "--reload_task", "blocking"]
        tensorboard.configure(argv=["tensorboard", *arguments, "--reload_interval", "0"])
        ingester = LocalDataIngester(tensorboard.flags)
        ingester.start()
        app = application.TensorBoardWSGIApp(
            tensorboard.flags, default.get_plugins(), ingester.data_provider, None, ingester.deprecated_multiplexer
        )
        self._client = Client(app)

    def get(self, route, **query):
        answer = self._client.get(f"/data/{route}?{urlencode(query)}")
        assert answer.status_code == 200, (route, answer.get_data())
        return answer.get_data()

    def json(self, route, **query):
        return json.loads(self.get(route, **query))

    def groups_of_runs(self):
        request = {"startIndex": 0, "sliceSize": 10, "allowedStatuses": ["STATUS_SUCCESS"], "colParams": []}
        answer = self._client.post("/data/plugin/hparams/session_groups", json=request)
        assert answer.status_code == 200, answer.get_data()
        return json.loads(answer.get_data())["sessionGroups"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    run = tmp_path_factory.mktemp("dashboard") / "run"
    assert main([*RUN, f"run_dir={run}"]) == 0
    return run


@pytest.fixture(scope="module")
def server(folder):
    return Server(folder)


def test_all_promised_tabs_are_active(server):
    deadline = time.monotonic() + 20  # the projector looks for embeddings in a thread, on its first request
    while not (listing := server.json("plugins_listing"))["projector"]["enabled"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert {tab for tab in TABS if listing[tab]["enabled"]} == TABS


def test_splits_overlay_and_every_chart_has_a_curve(server):
    tags = server.json("plugin/scalars/tags")
    assert {f"tensorboard/{split}" for split in ("train", "validation", "test")} <= tags.keys()
    assert "loss/total" in {*tags[TRAIN]} & {*tags["tensorboard/validation"]}
    layout = server.json("plugin/custom_scalars/layout")
    assert {"Losses", "Metrics", "bnn", "center", "Optimizer", "Time"} <= {each["title"] for each in layout["category"]}
    for chart in (chart for category in layout["category"] for chart in category["chart"]):
        (tag,) = chart["multiline"]["tag"]
        runs = [f"tensorboard/{split}" for split in ("train", "validation")]
        found = [server.json("plugin/custom_scalars/scalars", tag=tag, run=run) for run in runs]
        assert all(each["regex_valid"] for each in found), chart
        assert any(each["tag_to_events"] for each in found), chart


def test_histograms_show_latent_and_forward_weights_separately(server):
    tags = set(server.json("plugin/histograms/tags")[TRAIN])
    kernel = "weights/dense_2/kernel"
    assert {f"{kernel}/latent", f"{kernel}/forward", "weights/dense_1/kernel/latent", "center/centers"} <= tags
    assert "weights/dense_1/kernel/forward" not in tags
    first, *_, last = server.json("plugin/histograms/histograms", run=TRAIN, tag=f"{kernel}/forward")
    assert first[1] == 0
    filled = [(left, right) for left, right, count in last[2] if count]
    assert [round(edge) for edge in (filled[0][0], filled[-1][1])] == [-1, 1]
    assert len(filled) == 2
    assert set(server.json("plugin/distributions/tags")[TRAIN]) == tags


def test_pictures_embeddings_and_texts_are_present(server):
    pictures = server.json("plugin/images/tags")[TRAIN]
    assert {"filters/dense_1", "input/training_examples", "center/features_principal_components"} <= set(pictures)
    info = server.json("plugin/projector/info", run=TRAIN)
    assert [each["tensorName"] for each in info["embeddings"]] == ["center/features"]
    texts = server.json("plugin/text/tags")[TRAIN]
    assert set(texts) == {"run/config", "run/environment", "run/networks", "run/plan", "run/summary"}


def test_graph_shows_the_scopes_of_the_step(server):
    assert server.json("plugin/graphs/info")[TRAIN]["run_graph"]
    graph = server.get("plugin/graphs/graph", run=TRAIN, conceptual="false").decode()
    scopes = ("forward/model/", "compute_gradients/", "UPDATE_OPS/center_loss/", "apply_gradients/model/")
    for scope in (*scopes, "transform_weights/bnn_rounding/", "project/bnn_rounding/", "variables/"):
        assert f'name: "{scope}' in graph, scope


def test_hyperparameters_are_listed_with_the_best_values(server, folder):
    for shown in (server, Server(folder.parent)):  # one run, and a folder of runs
        (group,) = shown.groups_of_runs()
        assert group["hparams"]["Hooks"] == "bnn_rounding center_loss"
        values = {each["name"]["tag"] for each in group["metricValues"]}
        assert {"summary/best_validation/accuracy", "summary/test/accuracy"} <= values
