"""Packages that provide parts of a run: found without an import, refused one by one, blocking no other."""

import sys
from pathlib import Path

import pytest

from hookline.scripts.help import help_text
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.parts import check_path, installed_plugins, plugin_versions, trusted_packages, used_plugins
from hookline.trainer.config.preflight import preflight
from tests.support.refusals import assert_refused, refusal

NOISE = "# Noise\nnoise:\n  _target_: {package}.Noise\n  stddev: 0.1\n"
IMPORTED = "raise RuntimeError('imported')\n"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a package with an entry point; importing the package is an error."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def make(package="noisy", configs=None, *, entries=None, init=IMPORTED):
        info = site / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        entries = f"{package} = {package}" if entries is None else entries
        (info / "entry_points.txt").write_text(f"[console_scripts]\nx = y:z\n\n[hookline.plugins]\n{entries}\n")
        if init is not None:
            folder = site.joinpath(*package.split("."))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").write_text(init)
            write_configs(folder, package, configs)
        return info

    return make


def write_configs(folder, package, configs):
    for name, text in ({"hooks/noise": NOISE} if configs is None else configs).items():
        path = folder / "configs" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{package}", package))


def installed(tree):
    return {plugin.name: plugin for plugin in installed_plugins(tree)}


def job(tree, *arguments):
    (found,) = preflight(parse_command(["recipe=bnn", *arguments]), tree)
    return found


def test_installed_plugin_is_found_without_being_imported(install, tree):
    assert installed(tree) == {}
    assert "Plugins" not in help_text()
    assert_refused(r"is not allowed.*If you trust it, add plugins=\[noisy\]", check_path, "noisy.Noise")
    install()
    plugin = installed(tree)["noisy"]
    assert (plugin.package, plugin.distribution, plugin.version, plugin.problem) == ("noisy", "noisy", "1.0", None)
    assert list(plugin.options("hooks")) == ["noise"]
    assert plugin.options("model") == {}
    assert plugin_versions() == {"noisy": "1.0"}
    assert trusted_packages() == ["noisy"]
    assert used_plugins({"hooks": {"noise": {"_target_": "noisy.Noise"}}}) == ["noisy"]
    assert used_plugins({"hooks": {"noise": {"_target_": "noisy_too.Noise"}}}) == []
    for named in ([], ["plugins=[noisy]"]):  # also named explicitly, it counts once
        found = job(tree, *named, "+hooks=noise", "hooks.noise.stddev=0.5").config["hooks"]["noise"]
        assert found == {"_target_": "noisy.Noise", "stddev": 0.5}
    assert "noisy" not in sys.modules
    install("company.loud", {"hooks/roar": NOISE}, entries="loud = company.loud")
    assert job(tree, "+hooks=roar").config["hooks"]["noise"]["_target_"] == "company.loud.Noise"
    assert "company" not in sys.modules
    assert_refused("is not allowed", check_path, "company.other.Noise")


def test_broken_plugin_is_reported_and_blocks_nothing(install, tree):
    install(init=None)
    install("loud", entries="loud = loud:Plugin")
    install("sly", entries="sly = hookline.trainer.run")
    found = installed(tree)
    assert found["noisy"].problem == "its package 'noisy' cannot be found"
    for name, package in (("loud", "loud:Plugin"), ("sly", "hookline.trainer.run")):
        assert f"its entry point names '{package}'" in (found[name].problem or "")
    assert job(tree, "+hooks=center_loss").recipe == "bnn"
    for path in ("os.system", "hookline.trainer.run.session.execute"):
        assert_refused("is not allowed", check_path, path)


def test_plugin_config_with_a_taken_name_is_refused(install, tree):
    shadow = NOISE.replace("noise:", "center_loss:")
    info = install(configs={"hooks/center_loss": shadow, "hooks/noise": NOISE})
    theirs = info.parent / "noisy" / "configs" / "hooks" / "center_loss.yaml"
    assert installed(tree)["noisy"].problem == f"its {theirs} has the name of {tree / 'hooks' / 'center_loss.yaml'}"
    found = job(tree, "+hooks=center_loss").config["hooks"]["center_loss"]
    assert found["_target_"] == "hookline.hooks.center_loss.CenterLoss"
    assert "Unknown hook 'noise'" in refusal(job, tree, "+hooks=noise")
    assert "[noisy]" not in help_text()


def test_package_named_in_plugins_offers_its_configs(tree, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text(IMPORTED)
    write_configs(tmp_path / "mine", "mine", {"hooks/noise": NOISE, "recipe/loud": "# @package _global_\nseed: 7\n"})
    assert "Unknown hook 'noise'" in refusal(job, tree, "+hooks=noise")
    found = job(tree, "plugins=[mine]", "+hooks=noise").config
    assert found["hooks"]["noise"]["_target_"] == "mine.Noise"
    assert found["plugins"] == ["mine"]
    jobs = preflight(parse_command(["-m", "recipe=[bnn,loud]", "plugins=[mine]", "+hooks=noise", "seed=1,2"]), tree)
    assert [(each.recipe, each.config["seed"]) for each in jobs] == [("bnn+loud", 1), ("bnn+loud", 2)]
    write_configs(tmp_path / "mine", "mine", {"hooks/center_loss": NOISE})
    assert f"has the name of {tree / 'hooks' / 'center_loss.yaml'}" in refusal(job, tree, "plugins=[mine]")
    flags = ("--config-dir", str(tmp_path / "mine" / "configs"))  # a config directory may not reuse our names, either
    assert "center_loss.yaml, and would be ignored" in refusal(job, tree, *flags)


def test_missing_package_is_reported_with_where_to_look(tree, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = "there is no module 'nowhere'. Install it, or put PYTHONPATH="
    assert message in refusal(job, tree, "plugins=[nowhere]")
    Path("nowhere.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert job(tree, "plugins=[nowhere]").config["plugins"] == ["nowhere"]
