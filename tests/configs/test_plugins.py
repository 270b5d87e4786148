"""Packages that bring parts of a run: found without importing them, refused one by one, in nobody's way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import hooks
from train import main
from trainer.config.command import parse_command
from trainer.config.entry_help import entry_text
from trainer.config.explain import explain
from trainer.config.listing import help_text
from trainer.config.parts import check_path
from trainer.config.plugins import (
    check_found,
    installed_plugins,
    named_packages,
    named_plugins,
    plugin_versions,
    shadowed,
    trusted_packages,
    used_plugins,
)
from trainer.config.preflight import Job, preflight
from trainer.config.resolve import resolve
from trainer.errors import UserError

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
    install()
    plugin = installed_plugins(tree)["noisy"]
    assert (plugin.package, plugin.distribution, plugin.version, plugin.problem) == ("noisy", "noisy", "1.0", None)
    assert list(plugin.options("hooks")) == ["noise"]
    assert plugin.options("model") == {}
    assert plugin_versions() == {"noisy": "1.0"}
    assert trusted_packages() == ["noisy"]
    node = {"hooks": {"noise": {"_target_": "noisy.Noise"}}}
    assert used_plugins(node) == ["noisy"]
    assert used_plugins({"hooks": {"noise": {"_target_": "noisy_too.Noise"}}}) == []
    assert job(tree, "+hooks=noise", "hooks.noise.stddev=0.5").config["hooks"]["noise"] == {
        "_target_": "noisy.Noise",
        "stddev": 0.5,
    }
    assert "noisy" not in sys.modules


def test_what_is_not_installed_changes_nothing(tree: Path) -> None:
    assert installed_plugins(tree) == {}
    assert "Plugins" not in help_text(tree)
    with pytest.raises(UserError, match=r"is not allowed.*If you trust it, add plugins=\[noisy\]"):
        check_path("noisy.Noise")


def test_the_help_lists_what_plugins_bring_and_warns_of_those_that_are_not_used(install: Install, tree: Path) -> None:
    install()
    install("lost", init=None)
    lines = help_text(tree, width=100).splitlines()
    assert any(line.split() == ["noise", "Noise", "[noisy]"] for line in lines)
    listed = lines[lines.index("Plugins (installed packages that bring parts of a run)") + 1 :]
    assert [line.split() for line in listed[:2]] == [
        ["lost", "Warning:", "not", "used,", "since", "its", "package", "'lost'", "cannot", "be", "found"],
        ["noisy", "noisy", "1.0"],
    ]


def test_the_help_tells_all_about_one_name_of_a_plugin(install: Install, tree: Path) -> None:
    install()
    assert "hooks.noise.stddev=0.1" in entry_text("hooks.noise", tree)
    assert "file     configs/hooks/noise.yaml" in entry_text("noise", tree)
    assert "[noisy]" in entry_text("hooks", tree)
    with pytest.raises(UserError, match="Did you mean 'hooks.noise'?"):
        entry_text("hooks.noize", tree)


BROKEN = {
    "parser": ("a: [\n", "expected the node content, but found '<stream end>' (line 2)"),
    "twice": ("noise:\n  a: 1\n  a: 2\n", "found duplicate key a (line 3)"),
    "latin": ("# caf\xe9\nnoise: null\n", "'utf-8' codec can't decode byte 0xe9"),
    "grammar": ("noise: ${b\n", "no viable alternative at input '${b'"),
    "entries": ("- 1\n- 2\n", "it holds no keys"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_of_a_plugin_that_cannot_be_read_is_told_in_one_line(
    install: Install, tree: Path, capsys: pytest.CaptureFixture, name: str
) -> None:
    content, why = BROKEN[name]
    path = install().parent / "noisy" / "configs" / "hooks" / "broken.yaml"
    path.write_text(content, encoding="latin-1")
    assert main(["--help", "hooks.broken"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"Error: --help hooks.broken: {path} cannot be read: {why}")
    assert said.endswith(". Expected a YAML file of keys, in UTF-8.\n")
    composed = refusal(tree, "+hooks=broken")
    assert composed.startswith("The config cannot be composed: ")
    if name in ("parser", "twice"):
        assert f"{path} cannot be read: {why}. Expected a YAML file" in composed
    with pytest.raises(UserError, match="cannot be composed"):
        explain(parse_command(["recipe=bnn", "+hooks=broken", "--explain", "seed"]), tree)


def test_only_what_can_be_chosen_is_listed(install: Install, tree: Path) -> None:
    info = install(configs={"hooks/noise": NOISE, "hooks/inner/deep": NOISE, "hooks/inner/center_loss": NOISE})
    assert list(installed_plugins(tree)["noisy"].options("hooks")) == ["noise"]
    assert "deep" not in help_text(tree)
    with pytest.raises(UserError, match="no such name"):
        entry_text("hooks/inner/deep", tree)
    write_configs(tree.parent / "other", "other", {"hooks/inner/deep": NOISE})
    found = shadowed(info.parent / "noisy" / "configs", tree.parent / "other" / "configs")
    assert found is not None
    assert "hooks/inner/deep.yaml has the name of" in found, "files in folders clash as well"


def test_the_catalogue_has_the_hooks_of_plugins_and_ours_win(install: Install) -> None:
    install(configs={"hooks/noise": NOISE, "hooks/other": NOISE.replace("noise:", "prune:"), "hooks/bad": "a: [\n"})
    entries = hooks.catalogue()
    assert (entries["noise"].target, entries["noise"].plugin, entries["noise"].purpose) == (
        "noisy.Noise",
        "noisy",
        "Noise",
    )
    assert entries["prune"].plugin is None
    assert list(entries) == sorted(entries)


def test_a_typo_is_compared_with_the_names_of_plugins(install: Install, tree: Path) -> None:
    install()
    assert "Unknown hook 'nose'. Did you mean 'noise'?" in refusal(tree, "+hooks=nose")
    assert "Expected +hooks=noise to add it first" in refusal(tree, "hooks.noise.stddev=1.0")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"init": None}, "its package 'noisy' cannot be found"),
        ({"entries": "noisy = noisy:Plugin"}, "its entry point names 'noisy:Plugin'. Expected an importable package"),
        ({"entries": "noisy = os"}, "its entry point names 'os', which is not its own"),
        ({"entries": "noisy = trainer.run"}, "its entry point names 'trainer.run', which is not its own"),
        ({"entries": "noisy"}, "its entry_points.txt cannot be read"),
        ({"entries": "noisy = a\nnoisy = b"}, "its entry_points.txt cannot be read"),
    ],
)
def test_a_broken_plugin_says_why_and_is_in_nobodys_way(install: Install, tree: Path, given, expected: str) -> None:
    install(**given)
    assert expected in problem(tree)
    assert job(tree, "+hooks=center_loss").recipe == "bnn"
    for path in ("os.system", "trainer.run.session.execute"):
        with pytest.raises(UserError, match="it builds no part of a run|is not among|is not allowed here"):
            check_path(path)


def test_a_distribution_without_metadata_is_in_nobodys_way(install: Install, tree: Path) -> None:
    info = install()
    (info / "METADATA").unlink()
    assert job(tree).recipe == "bnn"
    (info / "entry_points.txt").write_bytes(b"[hookline.plugins]\nnoisy = \xff\n")
    assert job(tree).recipe == "bnn"


def test_a_plugin_that_has_one_of_our_names_is_refused_and_ours_is_used(install: Install, tree: Path) -> None:
    shadow = NOISE.replace("noise:", "center_loss:")
    info = install(configs={"hooks/center_loss": shadow, "hooks/noise": NOISE})
    theirs = info.parent / "noisy" / "configs" / "hooks" / "center_loss.yaml"
    assert problem(tree) == f"its {theirs} has the name of {tree / 'hooks' / 'center_loss.yaml'}"
    assert job(tree, "+hooks=center_loss").config["hooks"]["center_loss"]["_target_"] == "hooks.center_loss.CenterLoss"
    line = refusal(tree, "+hooks=noise")
    assert line.startswith("noise is no hook of this run: the plugin 'noisy' (noisy 1.0) has it, but is not used: its ")
    assert str(theirs) in line
    assert line.endswith(". Expected the plugin mended or uninstalled, or another name there.")
    assert "[noisy]" not in help_text(tree)


def test_two_plugins_with_one_name_are_both_refused(install: Install, tree: Path) -> None:
    install()
    install("loud")
    for name, other in (("noisy", "loud"), ("loud", "noisy")):
        assert f"{name}/configs/hooks/noise.yaml has the name of" in problem(tree, name)
        assert f"of the plugin '{other}' ({other} 1.0)" in problem(tree, name)
    assert "is no hook of this run: the plugin 'loud'" in refusal(tree, "+hooks=noise")


def test_two_packages_with_one_plugin_name_are_both_refused(install: Install, tree: Path) -> None:
    install()
    install("loud", {"hooks/roar": NOISE}, entries="noisy = loud")
    found = installed_plugins(tree)
    assert list(found) == ["noisy", "noisy (noisy)"]
    for plugin in found.values():
        assert plugin.problem == "loud and noisy both call a plugin 'noisy'"
    assert "both call a plugin 'noisy'" in refusal(tree, "+hooks=roar")


def test_of_a_package_that_is_installed_twice_the_first_on_the_path_counts(
    install: Install, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(distribution="Noisy.Hooks", version="2.0")
    later = tmp_path / "later" / "noisy_hooks-1.0.dist-info"
    later.mkdir(parents=True)
    (later / "METADATA").write_text("Metadata-Version: 2.1\nName: noisy-hooks\nVersion: 1.0\n")
    (later / "entry_points.txt").write_text("[hookline.plugins]\nnoisy = noisy\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(later.parent)])
    assert installed_plugins(tree)["noisy"].version == "2.0"
    assert problem(tree) == ""


def test_a_package_within_another_is_found_without_importing_either(install: Install, tree: Path) -> None:
    install("company.noisy", entries="noisy = company.noisy")
    assert job(tree, "+hooks=noise").config["hooks"]["noise"]["_target_"] == "company.noisy.Noise"
    assert "company" not in sys.modules
    with pytest.raises(UserError, match="is not allowed"):
        check_path("company.other.Noise")


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
    (other,) = preflight(parse_command(["recipe=[bnn,loud]", "plugins=[mine]"]), tree)
    assert (other.recipe, other.config["seed"]) == ("bnn+loud", 7)
    jobs = preflight(parse_command(["-m", "recipe=[bnn,loud]", "plugins=[mine]", "+hooks=noise", "seed=1,2"]), tree)
    assert [each.config["seed"] for each in jobs] == [1, 2]
    write_configs(tmp_path / "mine", "mine", {"hooks/center_loss": NOISE})
    assert "plugins holds 'mine', but its " in refusal(tree, "plugins=[mine]")
    assert f"has the name of {tree / 'hooks' / 'center_loss.yaml'}. Expected another name" in refusal(
        tree, "plugins=[mine]"
    )


def test_a_directory_of_configs_may_not_have_our_names(tree: Path, tmp_path: Path) -> None:
    write_configs(tmp_path, "mine", {"hooks/noise": NOISE})
    flags = ("--config-dir", str(tmp_path / "configs"))
    assert (
        "noise"
        in job(tree, "plugins=[tests]", "+hooks=noise", "hooks.noise._target_=tests.Noise", *flags).config["hooks"]
    )
    write_configs(tmp_path, "mine", {"hooks/center_loss": NOISE})
    assert "center_loss.yaml, and would be ignored. Expected another name." in refusal(tree, *flags)


def test_a_package_that_cannot_be_found_is_told_with_where_to_look(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = "plugins holds 'nowhere', but there is no module 'nowhere'. "
    assert refusal(tree, "plugins=[nowhere]") == (
        line + "Expected it installed, or PYTHONPATH=<directory that holds it> before the command."
    )
    Path("nowhere.py").write_text("")
    assert refusal(tree, "plugins=[nowhere]") == (
        line + "Python does not look into this directory: begin the command with PYTHONPATH=."
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert job(tree, "plugins=[nowhere]").config["plugins"] == ["nowhere"]
    with pytest.raises(UserError, match=r"no module 'nowhere.inner'. Expected a module within 'nowhere', which was f"):
        check_found(["nowhere.inner"])
    assert refusal(tree, "plugins=[os]").startswith("plugins holds 'os', a module of Python itself")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plugins=[a,b.c]", ["a", "b.c"]),
        ("+plugins=['a', \"b\"]", ["a", "b"]),
        ("plugins=[a],[b]", ["a", "b"]),
        ("plugins=null", []),
        ("plugins=[]", []),
        ("plugins=[os,trainer.run]", []),
        ("data.plugins=[a]", []),
    ],
)
def test_the_packages_that_an_override_names(text: str, expected: list[str]) -> None:
    assert named_packages(["recipe=bnn", text]) == expected


def test_a_package_that_is_installed_and_named_counts_once(install: Install, tree: Path) -> None:
    install()
    assert named_plugins(["noisy"], tree) == {}
    assert "noise" in job(tree, "plugins=[noisy]", "+hooks=noise").config["hooks"]


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ("import os\n\nwidth = 1 / 0\n", "ZeroDivisionError: division by zero ("),
        ("def f(:\n", "SyntaxError: invalid syntax ("),
        ("import no_such_package\n", "No module named 'no_such_package' ("),
        ("from os import no_such_name\n", "ImportError: cannot import name 'no_such_name' from 'os' ("),
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
    text = str(caught.value)
    assert text.startswith("_target_=faulty.Noise cannot be imported: ")
    assert expected in text
    line = init.count("\n")
    assert f"faulty/__init__.py:{line})" in text
    assert caught.value.__cause__ is not None, "debug=true shows it"


def test_an_attribute_that_is_missing_gets_a_suggestion(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("fine", init="class Noise: ...\n")
    with pytest.raises(UserError, match="the module 'fine' has no 'Nose'. Did you mean 'Noise'?"):
        resolve("fine.Nose", plugins=["fine"])
    assert resolve("fine.Noise", group="hooks").__name__ == "Noise"
    for path, group in (("fine.Other", "hooks"), ("fine.Noise", "model"), ("fine.Noise", None)):
        with pytest.raises(UserError, match=r"that the plugin 'fine' lists.*add plugins=\[fine\]"):
            resolve(path, group=group)
    monkeypatch.delitem(sys.modules, "fine")


def test_the_door_shows_a_config_with_parts_of_a_plugin(
    install: Install, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = install().parent
    site.rename(site.with_name("jos\xe9 \u4e2d"))  # a directory whose name is not ASCII
    monkeypatch.syspath_prepend(site.with_name("jos\xe9 \u4e2d"))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert main(["recipe=baseline", "+hooks=noise", "--cfg", "job", "--package", "hooks.noise"]) == 0
    assert "_target_: noisy.Noise" in capsys.readouterr().out
