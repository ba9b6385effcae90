"""Kernel regression's numbers: against a NumPy float64 twin on the same draws, and on draws of its own."""

import functools
import json

import jax
import numpy as np
import pytest

from attention_jax.tasks.kernel_regression import estimates
from configs import kernel_regression as configs
from experiments.kernel_regression import result_of

TRUTH = {"sine_power": lambda x: 2 * np.sin(x) + x**0.8, "sine_linear": lambda x: 2 * np.sin(x) + x}
QUERIES = np.arange(50) / 10
NAMES = configs.get_config().estimators


def kernel_weights(kernel, u):
    weights = {
        "gaussian": np.exp(-(u**2) / 2),
        "boxcar": 1.0 * (u < 1),
        "triangular": np.maximum(1 - u, 0),
        "epanechnikov": np.maximum(1 - u**2, 0),
    }[kernel]
    total = weights.sum(-1, keepdims=True)
    return np.where(total > 0, weights / np.where(total > 0, total, 1), 1 / u.shape[-1])


def silverman(x):
    quartiles = np.percentile(x, [75, 25], axis=-1)
    return 0.9 * np.minimum(x.std(-1, ddof=1), (quartiles[0] - quartiles[1]) / 1.34) * x.shape[-1] ** -0.2


def learned(x, y, leave_one_out, steps, learning_rate):
    """Adam on the logarithm of the width, the gradient written out."""
    squared = (x[:, :, None] - x[:, None, :]) ** 2
    allowed = ~np.eye(x.shape[1], dtype=bool) | (not leave_one_out)
    log_width, m, v = (np.zeros(len(x)) for _ in range(3))
    for step in range(1, steps + 1):
        scaled = squared / np.exp(2 * log_width)[:, None, None]
        scores = np.where(allowed, -scaled / 2, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        prediction = np.einsum("dqk,dk->dq", weights, y)
        slope = np.einsum("dqk,dqk,dqk->dq", weights, y[:, None, :] - prediction[:, :, None], scaled)
        gradient = np.mean(2 * (prediction - y) * slope, axis=-1)
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        log_width -= learning_rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    return np.exp(log_width)


def twin(name, x, y, truth):
    """Mean squared error of every draw, float64."""
    config = configs.get_config().learned
    if name == "average":
        estimates = np.repeat(y.mean(-1, keepdims=True), 50, axis=1)
    else:
        kernel, _, rest = name.partition("_")
        width = {
            "silverman": lambda: silverman(x),
            "learned": lambda: learned(x, y, rest != "leaky", **config),
        }.get(kernel, lambda: np.full(len(x), float(rest)))()
        kernel = kernel if kernel not in ("silverman", "learned") else "gaussian"
        u = np.abs(QUERIES[None, :, None] - x[:, None, :]) / width[:, None, None]
        if kernel == "gaussian":  # the same weights, without underflow
            u = np.sqrt(u**2 - (u**2).min(-1, keepdims=True))
        estimates = np.einsum("dqk,dk->dq", kernel_weights(kernel, u), y)
    return np.mean((estimates - truth(QUERIES)) ** 2, axis=-1)


@pytest.fixture(scope="module", params=["sine_power", "sine_linear"])
def measured(request):
    config = configs.get_config(request.param)
    config.draws = 150
    sample = jax.tree.map(lambda a: np.asarray(a, np.float64)[..., 0], samples(config))
    errors = jax.jit(functools.partial(estimates.squared_errors, config))(*estimates.arguments_of(config))
    return request.param, config, sample, jax.device_get(errors)


def samples(config):
    return jax.jit(jax.vmap(estimates.problem_of(config).draw))(estimates.keys_of(config))


@pytest.mark.parametrize("name", NAMES)
def test_every_estimator_agrees_with_its_float64_twin_on_the_same_draws(measured, name):
    variant, _, sample, errors = measured
    expected = twin(name, *sample, TRUTH[variant])
    assert errors[name].mean(dtype=np.float64) == pytest.approx(expected.mean(), rel=1e-4)


@pytest.mark.parametrize("name", [name for name in NAMES if "learned" not in name])
def test_every_estimator_agrees_with_independent_draws_within_four_standard_errors(measured, name, random):
    variant, config, _, errors = measured
    x = np.sort(random.uniform(0, 5, (2000, config.data.n)), axis=-1)
    y = TRUTH[variant](x) + random.normal(0, config.data.noise, x.shape)
    other = twin(name, x, y, TRUTH[variant])
    standard_error = np.hypot(errors[name].std(ddof=1) / np.sqrt(len(errors[name])), other.std(ddof=1) / np.sqrt(2000))
    assert abs(errors[name].mean(dtype=np.float64) - other.mean()) < 4 * standard_error


def test_leaving_the_own_pair_out_is_what_makes_the_learned_width_good(measured):
    errors = measured[3]
    assert errors["learned"].mean() < 0.5 * errors["learned_leaky"].mean()


def test_a_run_writes_every_estimator_with_its_interval_and_figures(launcher, tmp_path):
    process = launcher.run(tmp_path / "w", config="configs/kernel_regression.py", draws=20)
    assert process.returncode == 0, process.err
    result = json.loads((tmp_path / "w" / "result.json").read_text())
    assert set(result["estimators"]) == set(NAMES)
    for row in result["estimators"].values():
        low, high = row["mse_ci95"]
        assert low < row["mse_mean"] < high
        assert high - row["mse_mean"] == pytest.approx(2.0930 * row["mse_std"] / np.sqrt(20), rel=1e-3)
    for name in ("fits", "weights", "kernels", "learned_width"):
        assert (tmp_path / "w" / "figures" / f"{name}.png").stat().st_size > 5000
    assert result["seconds"] < 60


@pytest.mark.slow
def test_other_widths_run_on_request_and_unknown_ones_are_refused(launcher, tmp_path):
    kernel = "configs/kernel_regression.py"
    asked = launcher.run(tmp_path / "w", config=kernel, draws=5, estimators="('boxcar_0.5','constant_1')")
    assert asked.returncode == 0, asked.err
    assert set(json.loads((tmp_path / "w" / "result.json").read_text())["estimators"]) == {"boxcar_0.5", "constant_1"}
    refused = launcher.run(tmp_path / "v", config=kernel, draws=5, estimators="('tricube_1',)")
    assert refused.returncode == 1
    assert "error: config.estimators='tricube_1': choose one of" in refused.err


def test_every_seed_has_numbers_of_its_own_beside_those_of_all_draws(random):
    config = configs.get_config()
    config.seeds = (3, 5)
    errors = random.random(8)
    found = result_of(config, {"kernel": errors})
    assert found["estimators"]["kernel"]["mse_mean"] == pytest.approx(errors.mean())
    own = [member["estimators"]["kernel"]["mse_mean"] for member in found["members"]]
    assert own == pytest.approx([errors[:4].mean(), errors[4:].mean()])
    config.seeds = (3,)
    assert set(result_of(config, {"kernel": errors})) == {"estimators"}


def test_classification_in_the_plane_gives_probabilities():
    config = configs.get_config("blobs")
    config.draws = 2
    problem, sample = estimates.problem_of(config), samples(config)
    np.testing.assert_allclose(problem.truth.sum(-1), 1, rtol=1e-5)
    for estimate in estimates.estimators_of(config).values():
        probabilities = estimate(sample.x[0], sample.y[0], problem.queries)
        assert (probabilities >= 0).all()
        np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-4)
