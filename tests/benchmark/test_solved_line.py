"""The line on what was solved on every seed."""

from seeupo_gym.benchmark.tables import solved_line


def result(environment, algorithm, score):
    return {
        "settings": {"environment": environment, "algorithm": algorithm},
        "evaluations": [{"normalized_score": 0.0}, {"normalized_score": score}],
    }


def test_an_environment_is_solved_by_those_that_solve_it_on_every_seed():
    results = [
        result("Trap-v0", "seeupo", 0.5),
        result("Trap-v0", "seeupo", 1.0),
        result("Trap-v0", "staged", 0.95),
        result("Trap-v0", "staged", 1.0),
        result("Chain-v0", "seeupo", 0.949),
        result("Pole-v0", "seeupo", None),
    ]
    assert solved_line(results) == (
        "Solved on every seed (a score of at least 0.95): Trap-v0 by staged; Chain-v0 by none."
    )
    assert solved_line(results[-1:]) == ""
