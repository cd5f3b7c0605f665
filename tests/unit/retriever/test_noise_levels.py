import pytest

from services.retriever.noise_levels import equal_step

TRAILING = {"num_train_timesteps": 1000, "timestep_spacing": "trailing"}
LEADING = {"num_train_timesteps": 1000, "timestep_spacing": "leading", "steps_offset": 1}


@pytest.mark.parametrize(
    ("config", "step", "steps", "total", "start"),
    [
        (TRAILING, 15, 50, 50, 15),
        (TRAILING, 10, 50, 100, 20),
        (TRAILING, 10, 50, 25, 5),
        (TRAILING, 15, 50, 25, 0),  # 7.5
        (TRAILING, 10, 50, 30, 6),
        (TRAILING, 7, 50, 49, 0),
        (TRAILING, 20, 50, 20, 8),
        (LEADING, 10, 50, 25, 0),  # leading spacing starts elsewhere for each T
    ],
)
def test_only_exactly_equal_noise_counts(
    config: dict[str, object], step: int, steps: int, total: int, start: int
) -> None:
    assert equal_step("ddim", config, step, steps, total=total) == start


def test_flow_matching_counts_intervals() -> None:
    assert equal_step("flow_match_euler", {}, 10, 51, total=26) == 5
    assert equal_step("flow_match_euler", {}, 11, 51, total=26) == 0
