import json

from click.testing import CliRunner

from gpulab_hub.cli import main
from gpulab_hub.paths import LabPaths
from gpulab_hub.simulate import shipped, stage


def gpulab(state, *arguments):
    group, command, *rest = arguments
    return CliRunner().invoke(main, [group, command, "--state", str(state), *rest])


def test_the_list_marks_what_is_simulated_here(tmp_path):
    assert "(simulated here)" not in gpulab(tmp_path, "simulate", "list").output
    stage.prepare("2xh100", LabPaths(tmp_path).simulate, with_nodes=False)
    lines = gpulab(tmp_path, "simulate", "list").output.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped.machines())
    assert lines[0].endswith("(simulated here)")
    said = json.loads(gpulab(tmp_path, "simulate", "list", "--json").output)
    assert said["chosen"] == "2xh100"


def test_a_machine_is_shown_gpu_by_gpu(tmp_path):
    assert gpulab(tmp_path, "simulate", "show", "dgx-h200-mig").output.splitlines()[1:4] == [
        "  4 x NVIDIA H200: whole",
        "  1 x NVIDIA H200: " + ", ".join(f"1g.18gb@{n}" for n in range(7)),
        "  1 x NVIDIA H200: 3g.71gb@4, 2g.35gb@0, 1g.18gb@2, 1g.18gb@3",
    ]
    said = json.loads(gpulab(tmp_path, "simulate", "show", "h100-mig", "--json").output)
    assert said["gpus"][0]["mig"] is None
    assert said["gpus"][1]["mig"][6] == {"profile": "1g.10gb", "start": 6}
    assert "no driver" in gpulab(tmp_path, "simulate", "show", "none").output


def test_a_file_with_a_typo_is_refused_with_the_place(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("gpus: [{model: h100-80, mig: [1g.10gb@9]}]")
    result = gpulab(tmp_path, "simulate", "show", str(file))
    assert result.exit_code == 1
    assert f"{file}: gpus.0.mig: 1g.10gb@9 cannot begin there" in result.output
