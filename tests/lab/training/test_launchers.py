"""Variables of launchers: complete, absent, or a line that says what is missing."""

from pathlib import Path

import pytest
from accelerate.utils import parse_flag_from_env
from hypothesis import given
from hypothesis import strategies as st

from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.settings import dump
from floater.lab.training.launchers import refuse_sharding, settle_processes, variables_of_accelerate
from lab.training.small_run import settings

TORCHRUN = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}
MPI = {
    "WORLD_SIZE": ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"],
    "RANK": ["PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"],
    "LOCAL_RANK": ["MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"],
}
EVERY = [*MPI, *(name for names in MPI.values() for name in names)]


@pytest.mark.parametrize("kind", [None, 0, 1, 2])
def test_what_a_launcher_sets_is_passed_on(kind: int | None) -> None:
    names = {name: name if kind is None or name not in MPI else MPI[name][kind] for name in TORCHRUN}
    environment = {names[name]: value for name, value in TORCHRUN.items()}
    settle_processes(environment)
    assert {name: environment[name] for name in TORCHRUN} == TORCHRUN


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"},
        {"WORLD_SIZE": "1"},
        {"LOCAL_RANK": "0"},
        {"PMI_SIZE": "1", "PMI_RANK": "0"},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
    ],
)
def test_one_process_is_one_process(variables: dict[str, str]) -> None:
    slurm = {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}  # a shell of salloc
    environment = variables | slurm
    settle_processes(environment)
    assert environment == slurm


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"WORLD_SIZE": "4"},
            "WORLD_SIZE is 4, but RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT are not set; unset",
        ),
        (
            {"PMI_SIZE": "4", "PMI_RANK": "2"},
            "PMI_SIZE is 4, but LOCAL_RANK, MASTER_ADDR, MASTER_PORT are not set",
        ),
        (TORCHRUN | {"MASTER_PORT": ""}, "WORLD_SIZE is 4, but MASTER_PORT is not set"),
        (TORCHRUN | {"MASTER_PORT": "auto"}, "MASTER_PORT is 'auto'; it must be the number of a port"),
        (TORCHRUN | {"MASTER_PORT": "65536"}, "MASTER_PORT is '65536'; .* at most 65535"),
        (TORCHRUN | {"RANK": "4"}, "RANK is 4, but WORLD_SIZE is 4; unset both"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK is 2, but WORLD_SIZE is not set; unset both"),
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE is 'four'; launchers set it to a whole number"),
        ({"OMPI_COMM_WORLD_RANK": "-1"}, "OMPI_COMM_WORLD_RANK is '-1'; launchers set it to a whole number"),
    ],
)
def test_what_is_missing_is_named(variables: dict[str, str], message: str) -> None:
    before = dict(variables)
    with pytest.raises(DataError, match=message):
        settle_processes(variables)
    assert variables == before


@given(
    st.dictionaries(
        st.sampled_from([*EVERY, "MASTER_ADDR", "MASTER_PORT"]),
        st.integers(0, 3).map(str) | st.sampled_from(["", "x"]),
    )
)
def test_any_variables_are_one_process_several_or_a_line(variables: dict[str, str]) -> None:
    before = dict(variables)
    try:
        settle_processes(variables)
    except DataError:
        assert variables == before
        return
    if any(name in variables for name in EVERY):
        assert all(variables[name] for name in TORCHRUN)
        assert int(variables["RANK"]) < int(variables["WORLD_SIZE"])
    else:
        sizes = [before[name] for name in ("WORLD_SIZE", *MPI["WORLD_SIZE"]) if name in before]
        assert int([*sizes, "1"][0]) == 1


def test_a_variable_that_accelerate_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "maybe")
    message = "accelerate: invalid truth value maybe; correct or unset ACCELERATE_USE_CPU of the environment"
    with pytest.raises(DataError, match=message), variables_of_accelerate():
        parse_flag_from_env("ACCELERATE_USE_CPU")
    with pytest.raises(ValueError, match="of another kind") as other, variables_of_accelerate():
        raise ValueError("of another kind")
    assert not isinstance(other.value, DataError)


@pytest.mark.parametrize("name", ["FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG"])
def test_sharded_trainings_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Accelerate ignored FSDP on a CPU; nothing is read or written before the refusal."""
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "true")
    config = tmp_path / "settings.yaml"
    config.write_text(dump(settings(tmp_path / "run")), encoding="utf-8")
    assert main(["train", str(config)]) == 2
    said = capsys.readouterr().err.strip()
    assert f"ACCELERATE_USE_{name} is 'true', but a training with" in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["study", "study.yaml"],
            "a study is one process; start it without torchrun and set budget.processes=4",
        ),
        (["evaluate", "run"], "floater evaluate is one process; start it without torchrun"),
        (["init", "generated/copy"], "floater init is one process; start it without torchrun"),
    ],
)
def test_a_command_of_one_process_refuses_several(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Several would write the same files: nothing is, and nothing is read."""
    monkeypatch.chdir(tmp_path)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert main(words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"floater: WORLD_SIZE is 4, but {message}\n")
    assert not list(tmp_path.iterdir())


def test_a_process_alone_is_not_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    alone = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
    for name, value in (TORCHRUN | alone).items():
        monkeypatch.setenv(name, value)
    assert main(["init", "generated/copy", "copy.yaml"]) == 0


def test_a_training_of_whole_weights_is_not_refused() -> None:
    refuse_sharding({"ACCELERATE_USE_FSDP": "false", "ACCELERATE_MIXED_PRECISION": "bf16"})
