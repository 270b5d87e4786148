"""Packages that bring parts of a run: found without importing them, refused one by one, in nobody's way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hookline.trainer.config.build import resolve
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.help import help_text
from hookline.trainer.config.parts import check_path
from hookline.trainer.config.plugins import (
    check_found,
    installed_plugins,
    plugin_versions,
    trusted_packages,
    used_plugins,
)
from hookline.trainer.config.preflight import Job, preflight
from hookline.trainer.errors import UserError

NOISE = "# Noise\nnoise:\n  _target_: {package}.Noise\n  stddev: 0.1\n"
IMPORTED = "raise RuntimeError('imported')\n"
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that makes an installed package with an entry point; importing the package is an error."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def make(
        package: str = "noisy",
        configs: Mapping[str, str] | None = None,
        *,
        entries: str | None = None,
        distribution: str | None = None,
        version: str = "1.0",
        init: str | None = IMPORTED,
    ) -> Path:
        info = site / f"{distribution or package}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution or package}\nVersion: {version}\n")
        entries = f"{package} = {package}" if entries is None else entries
        (info / "entry_points.txt").write_text(f"[console_scripts]\nx = y:z\n\n[hookline.plugins]\n{entries}\n")
        if init is not None:
            folder = site.joinpath(*package.split("."))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").write_text(init)
            write_configs(folder, package, configs)
        return info

    return make


def write_configs(folder: Path, package: str, configs: Mapping[str, str] | None) -> None:
    for name, text in ({"hooks/noise": NOISE} if configs is None else configs).items():
        path = folder / "configs" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{package}", package))


def problem(tree: Path, name: str = "noisy") -> str:
    return installed_plugins(tree)[name].problem or ""


def job(tree: Path, *arguments: str) -> Job:
    (found,) = preflight(parse_command(["recipe=bnn", *arguments]), tree)
    return found


def refusal(tree: Path, *arguments: str) -> str:
    with pytest.raises(UserError) as caught:
        job(tree, *arguments)
    return str(caught.value)


def test_an_installed_package_is_found_without_being_imported(install: Install, tree: Path) -> None:
    assert installed_plugins(tree) == {}
    assert "Plugins" not in help_text(tree)
    with pytest.raises(UserError, match=r"is not allowed.*If you trust it, add plugins=\[noisy\]"):
        check_path("noisy.Noise")
    install()
    plugin = installed_plugins(tree)["noisy"]
    assert (plugin.package, plugin.distribution, plugin.version, plugin.problem) == ("noisy", "noisy", "1.0", None)
    assert list(plugin.options("hooks")) == ["noise"]
    assert plugin.options("model") == {}
    assert plugin_versions() == {"noisy": "1.0"}
    assert trusted_packages() == ["noisy"]
    assert used_plugins({"hooks": {"noise": {"_target_": "noisy.Noise"}}}) == ["noisy"]
    assert used_plugins({"hooks": {"noise": {"_target_": "noisy_too.Noise"}}}) == []
    for named in ([], ["plugins=[noisy]"]):  # named as well, it counts once
        found = job(tree, *named, "+hooks=noise", "hooks.noise.stddev=0.5").config["hooks"]["noise"]
        assert found == {"_target_": "noisy.Noise", "stddev": 0.5}
    assert "noisy" not in sys.modules
    install("company.loud", {"hooks/roar": NOISE}, entries="loud = company.loud")
    assert job(tree, "+hooks=roar").config["hooks"]["noise"]["_target_"] == "company.loud.Noise"
    assert "company" not in sys.modules
    with pytest.raises(UserError, match="is not allowed"):
        check_path("company.other.Noise")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"init": None}, "its package 'noisy' cannot be found"),
        ({"entries": "noisy = noisy:Plugin"}, "its entry point names 'noisy:Plugin'"),
        (
            {"entries": "noisy = hookline.trainer.run"},
            "its entry point names 'hookline.trainer.run', which is not its own",
        ),
        ({"entries": "noisy = a\nnoisy = b"}, "both call a plugin 'noisy'"),
        ({"entries": "noisy"}, "its entry_points.txt cannot be read"),
    ],
)
def test_a_broken_plugin_says_why_and_is_in_nobodys_way(install: Install, tree: Path, given, expected: str) -> None:
    info = install(**given)
    assert expected in problem(tree)
    assert job(tree, "+hooks=center_loss").recipe == "bnn"
    for path in ("os.system", "hookline.trainer.run.session.execute"):
        with pytest.raises(UserError, match="it builds no part of a run|is not among|is not allowed here"):
            check_path(path)
    (info / "METADATA").unlink()
    (info / "entry_points.txt").write_bytes(b"[hookline.plugins]\nnoisy = \xff\n")
    assert job(tree).recipe == "bnn"


def test_a_plugin_that_has_one_of_our_names_is_refused_and_ours_is_used(install: Install, tree: Path) -> None:
    shadow = NOISE.replace("noise:", "center_loss:")
    info = install(configs={"hooks/center_loss": shadow, "hooks/noise": NOISE})
    theirs = info.parent / "noisy" / "configs" / "hooks" / "center_loss.yaml"
    assert problem(tree) == f"its {theirs} has the name of {tree / 'hooks' / 'center_loss.yaml'}"
    assert (
        job(tree, "+hooks=center_loss").config["hooks"]["center_loss"]["_target_"]
        == "hookline.hooks.center_loss.CenterLoss"
    )
    assert "the plugin 'noisy' (noisy 1.0) has it, but is not used: its " in refusal(tree, "+hooks=noise")
    assert "[noisy]" not in help_text(tree)


def test_two_plugins_or_packages_with_one_name_are_both_refused(install: Install, tree: Path) -> None:
    install()
    install("loud")
    for name, other in (("noisy", "loud"), ("loud", "noisy")):
        assert f"{name}/configs/hooks/noise.yaml has the name of" in problem(tree, name)
        assert f"of the plugin '{other}' ({other} 1.0)" in problem(tree, name)
    assert "is no hook of this run: the plugin 'loud'" in refusal(tree, "+hooks=noise")
    install("roaring", {"hooks/roar": NOISE}, entries="noisy = roaring")
    found = [plugin.problem for name, plugin in installed_plugins(tree).items() if name.startswith("noisy")]
    assert found == ["noisy and roaring both call a plugin 'noisy'"] * 2
    assert "both call a plugin 'noisy'" in refusal(tree, "+hooks=roar")


def test_a_package_that_plugins_names_offers_configs_in_the_same_way(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text(IMPORTED)
    write_configs(tmp_path / "mine", "mine", {"hooks/noise": NOISE, "recipe/loud": "# @package _global_\nseed: 7\n"})
    assert "Unknown hook 'noise'" in refusal(tree, "+hooks=noise")
    found = job(tree, "plugins=[mine]", "+hooks=noise").config
    assert found["hooks"]["noise"]["_target_"] == "mine.Noise"
    assert found["plugins"] == ["mine"]
    jobs = preflight(parse_command(["-m", "recipe=[bnn,loud]", "plugins=[mine]", "+hooks=noise", "seed=1,2"]), tree)
    assert [(each.recipe, each.config["seed"]) for each in jobs] == [("bnn+loud", 1), ("bnn+loud", 2)]
    write_configs(tmp_path / "mine", "mine", {"hooks/center_loss": NOISE})
    assert f"has the name of {tree / 'hooks' / 'center_loss.yaml'}" in refusal(tree, "plugins=[mine]")
    flags = ("--config-dir", str(tmp_path / "mine" / "configs"))  # nor may a directory of configs have our names
    assert "center_loss.yaml, and would be ignored" in refusal(tree, *flags)


def test_a_package_that_cannot_be_found_is_told_with_where_to_look(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refusal(tree, "plugins=[nowhere]")
    assert "there is no module 'nowhere'" in said
    assert "PYTHONPATH=<directory that holds it>" in said
    Path("nowhere.py").write_text("")
    assert refusal(tree, "plugins=[nowhere]").endswith("begin the command with PYTHONPATH=.")
    monkeypatch.syspath_prepend(tmp_path)
    assert job(tree, "plugins=[nowhere]").config["plugins"] == ["nowhere"]
    with pytest.raises(UserError, match=r"no module 'nowhere.inner'. Expected a module within 'nowhere', which was f"):
        check_found(["nowhere.inner"])


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ("import os\n\nwidth = 1 / 0\n", "ZeroDivisionError: division by zero ("),
        ("def f(:\n", "SyntaxError: invalid syntax ("),
        ("import no_such_package\n", "No module named 'no_such_package' ("),
    ],
)
def test_an_import_error_is_an_error_only_when_the_plugin_is_used(
    install: Install, tree: Path, monkeypatch: pytest.MonkeyPatch, init: str, expected: str
) -> None:
    install("faulty", init=init)
    assert job(tree, "+hooks=noise").config["hooks"]["noise"]["_target_"] == "faulty.Noise"
    monkeypatch.delitem(sys.modules, "faulty", raising=False)
    with pytest.raises(UserError) as caught:
        resolve("faulty.Noise", group="hooks")
    assert str(caught.value).startswith("_target_=faulty.Noise cannot be imported: ")
    assert expected in str(caught.value)
    assert f"faulty/__init__.py:{init.count(chr(10))})" in str(caught.value)
    assert caught.value.__cause__ is not None, "debug=true shows it"
