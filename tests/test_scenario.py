from pathlib import Path

import pytest

from orchestrator.content.scenario import Scenario, parse_params
from orchestrator.errors import ConfigError
from orchestrator.limits import Limits

QUARTERLY = """\
goal: 写 ${quarter} ${region} 的报告
params: {quarter: , region: 华东, least: 3}
inputs: ["data/${region}.csv"]
when: a report about one quarter
answer: report
limits: {max_parallel: 2}
plan:
  - {id: total, tool: query_table, args: {sql: "SELECT '${params.region}'", least: "${least}", q: "${quarter}"}}
  - {id: report, role: writer, goal: "write ${quarter}", after: [total]}
  - {id: save, tool: write_file, after: [report], args: {text: "${outcomes.report.answer} ${region}"}}
checks:
  - {file: "${region}.md", min_size: "${least}", contains: "${quarter}"}
"""


def load(tmp_path: Path, text: str) -> Scenario:
    file = tmp_path / "scenarios" / "quarterly.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, "utf-8")
    return Scenario.load(file)


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return str(caught.value).replace(str(tmp_path / "scenarios") + "/", "")


def test_parameters_are_put_into_goal_inputs_plan_and_checks(tmp_path: Path) -> None:
    bound = load(tmp_path, QUARTERLY).bind({"quarter": "Q1", "region": "华北"})
    assert bound.goal == "写 Q1 华北 的报告"
    assert bound.inputs == ("data/华北.csv",)
    assert bound.plan[0].args == {"sql": "SELECT '华北'", "least": 3, "q": "Q1"}
    assert bound.plan[1].goal == "write Q1"
    assert bound.checks[0].model_dump(exclude_defaults=True) == {"file": "华北.md", "min_size": 3, "contains": ("Q1",)}
    assert bound.params == {"quarter": "Q1", "region": "华北", "least": 3}
    assert bound.limits == Limits(max_parallel=2)


def test_results_of_subtasks_are_left_to_be_filled_in_when_they_are_there(tmp_path: Path) -> None:
    bound = load(tmp_path, QUARTERLY).bind({"quarter": "Q1"})
    assert bound.plan[2].args == {"text": "${outcomes.report.answer} 华东"}


def test_a_bound_scenario_can_be_bound_again_with_other_parameters(tmp_path: Path) -> None:
    scenario = load(tmp_path, QUARTERLY)
    assert scenario.bind({"quarter": "Q1"}).bind({"quarter": "Q2"}).goal == "写 Q2 华东 的报告"


def test_a_parameter_without_a_value_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"quarterly.yaml:2: the parameter 'quarter' needs a value: --set quarter="):
        load(tmp_path, QUARTERLY).bind()


def test_an_unknown_parameter_is_told_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no parameter 'quartre'; did you mean 'quarter'"):
        load(tmp_path, QUARTERLY).bind({"quartre": "Q1"})


def test_a_plan_is_filled_in_with_its_parameters(tmp_path: Path) -> None:
    scenario = load(tmp_path, QUARTERLY)
    assert (scenario.name, scenario.when, scenario.answer) == ("quarterly", "a report about one quarter", "report")
    assert [subtask.id for subtask in scenario.plan] == ["total", "report", "save"]
    assert scenario.bind({"quarter": "Q3"}).plan[1].goal == "write Q3"


def test_values_are_typed_by_the_rules_of_yaml(tmp_path: Path) -> None:
    given = parse_params(["a=1", "b=0.5", "c=true", "d=Q1=x", "e='1'", "f=", "g=2026-01-01", "h=no"])
    assert given == {"a": 1, "b": 0.5, "c": True, "d": "Q1=x", "e": "1", "f": None, "g": "2026-01-01", "h": "no"}
    with pytest.raises(ConfigError, match="'quarter' sets nothing; write key=value"):
        parse_params(["quarter"])


def test_inputs_are_looked_for_beside_the_scenario_then_in_the_project(tmp_path: Path) -> None:
    for folder in ("scenarios/data", "data"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "sales.csv").write_text(folder)
    (tmp_path / "data" / "more.csv").write_text("x")
    files = load(tmp_path, "goal: x\ninputs: [data/sales.csv, data/more.csv]\n").input_files()
    assert files == [tmp_path / "scenarios/data/sales.csv", tmp_path / "data/more.csv"]


def test_a_missing_input_and_two_of_one_name_are_told_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"quarterly.yaml:3: the input 'sale.csv' is neither in"):
        load(tmp_path, "goal: x\ninputs:\n  - sale.csv\n").input_files()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.csv").write_text("1")
    with pytest.raises(ConfigError, match=r"quarterly.yaml:2: two inputs are called 'x.csv'"):
        load(tmp_path, "goal: x\ninputs: [a/x.csv, b/x.csv]\n").input_files()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gaol: x\n", "quarterly.yaml:1: unknown key 'gaol'; did you mean 'goal'?"),
        ("goal: ' '\n", "the goal is empty"),
        ("goal: ${fiel}\nparams: {file: a}\n", "quarterly.yaml:1: unknown parameter ${fiel}; did you mean 'file'?"),
        ("goal: ${x}\n", "unknown parameter ${x}; the scenario has no params"),
        ("goal: x\nparams: [a]\n", "quarterly.yaml:2: params is a mapping"),
        ("goal: x\nwhen: always\n", "when belongs to a plan"),
        (
            "goal: x\nanswer: totl\nplan: [{id: total, role: a, goal: b}]\n",
            "unknown subtask 'totl'; did you mean 'total'",
        ),
        (
            "goal: x\nplan:\n  - {id: a, role: b, goal: c, efort: 1}\n",
            "quarterly.yaml:3: unknown key 'efort' in plan[0]; did you mean",
        ),
        ("goal: x\nplan:\n  - {id: a, goal: c}\n", "quarterly.yaml:3: plan[0]: a subtask has either a role or a tool"),
        (
            "goal: x\nplan:\n- {id: a, role: b, goal: c, on_failure: skp}\n",
            "plan[0].on_failure is 'skp'; did you mean 'skip'",
        ),
        ("goal: x\nlimits:\n  time: 0\n", "quarterly.yaml:3: limits.time is 0: input should be greater than 0"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    assert message in refused(tmp_path, text)
