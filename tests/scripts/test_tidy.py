"""scripts/tidy finds what .clang-tidy forbids, in every source of a merged run."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def tidy(tmp_path, monkeypatch):
    """The script, for a project of two sources; (run, folder of the layer base)."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CCACHE_DISABLE", raising=False)
    loader = importlib.machinery.SourceFileLoader("tidy", str(ROOT / "scripts/tidy"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("tidy", loader))
    loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module.passed_checks, "ROOT", tmp_path)
    shutil.copy(ROOT / ".clang-tidy", tmp_path)
    base, build = tmp_path / "palimpsest/base", tmp_path / "build"
    base.mkdir(parents=True)
    build.mkdir()
    for name in ("one", "two"):
        (base / f"{name}.cpp").write_text(f"int {name}() {{ return 1; }}\n")
    libtorch = tmp_path / "libtorch"
    (libtorch / "torch").mkdir(parents=True)
    (libtorch / "torch/version.h").write_text("#define TORCH_VERSION 1\n")
    merged = build / "Unity/unity_0_cxx.cxx"
    merged.parent.mkdir()
    merged.write_text('#include "palimpsest/base/one.cpp"\n')
    (build / "compile_commands.json").write_text(json.dumps(
        [{"file": str(file), "command": f"c++ -std=c++20 -I{tmp_path} -isystem {libtorch} -fPIC -fpch-preprocess -o x.o -c {file}"}
         for file in (merged, base / "two.cpp")]))
    monkeypatch.setattr(sys, "argv", ["tidy", str(build)])

    def run():
        module.versions.cache_clear()  # kept for one run
        with pytest.raises(SystemExit) as end:
            module.main()
        return end.value.code

    run.module = module
    return run, base


CHECKED, REMEMBERED = "kernels-base: 2 files\n", "kernels-base: 2 files, unchanged since the last check, which passed\n"


def test_clean_sources_pass_and_are_not_checked_again(tidy, capsys):
    run, base = tidy
    assert not run() and CHECKED in capsys.readouterr().out
    assert not run() and REMEMBERED in capsys.readouterr().out
    shutil.rmtree(base.parents[1] / "build/tidy")  # as in a fresh clone with the same compiler cache
    assert not run() and REMEMBERED in capsys.readouterr().out


@pytest.mark.parametrize("change", [
    lambda root: (root / "palimpsest/base/one.cpp").write_text("int one() { return 2; }\n"),
    lambda root: (root / "palimpsest/base/new.h").write_text("#pragma once\n"),
    lambda root: (root / ".clang-tidy").write_text((root / ".clang-tidy").read_text() + "\n"),
    lambda root: (root / "build/compile_commands.json").write_text(
        (root / "build/compile_commands.json").read_text().replace("-std=c++20", "-std=c++20 -DNEW")),
    lambda root: (root / "libtorch/torch/version.h").write_text("#define TORCH_VERSION 2\n"),
])
def test_whatever_decides_the_findings_is_checked_anew(tidy, capsys, change):
    run, base = tidy
    assert not run() and CHECKED in capsys.readouterr().out
    change(base.parents[1])
    assert not run() and CHECKED in capsys.readouterr().out


def newer(tool, folder):
    """A stand-in in `folder` that says another version."""
    folder.mkdir()
    script = folder / pathlib.Path(tool).name
    script.write_text(f'#!/bin/sh\n[ "$1" != --version ] || echo newer\nexec {shutil.which(tool)} "$@"\n')
    script.chmod(0o755)
    return script


def test_another_version_of_the_compiler_checks_anew(tidy, capsys, tmp_path, monkeypatch):
    run, _ = tidy
    assert not run() and CHECKED in capsys.readouterr().out
    monkeypatch.setenv("PATH", str(newer("c++", tmp_path / "bin").parent), prepend=os.pathsep)
    assert not run() and CHECKED in capsys.readouterr().out


def test_another_clang_tidy_checks_anew(tidy, capsys, tmp_path, monkeypatch):
    run, _ = tidy
    assert not run() and CHECKED in capsys.readouterr().out
    monkeypatch.setattr(run.module, "CLANG_TIDY", str(newer(run.module.CLANG_TIDY, tmp_path / "bin")))
    assert not run() and CHECKED in capsys.readouterr().out


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_finding_fails_in_a_merged_and_in_a_single_source(tidy, capsys, name):
    run, base = tidy
    assert not run()
    (base / f"{name}.cpp").write_text("int* nothing() { return 0; }\n")
    for _ in range(2):  # a failure is never taken for the last success
        assert run()
        told = capsys.readouterr().out
        assert f"{name}.cpp:1:" in told and "modernize-use-nullptr" in told


def test_a_name_that_stands_in_two_sources_is_told(tidy, capsys):
    run, base = tidy
    for name in ("one", "two"):
        (base / f"{name}.cpp").write_text("namespace { int same() { return 1; } }\nint %s() { return same(); }\n" % name)
    assert run() and "redefinition of 'same'" in capsys.readouterr().out
