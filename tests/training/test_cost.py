"""FLOPs counted in the jaxpr agree with the closed form, loops included."""

import jax
import jax.numpy as jnp

from attention_jax.training.cost import cost, depth, flops

A, B = jnp.ones((8, 16)), jnp.ones((16, 32))


def test_a_matrix_product_is_two_flops_a_multiply_add():
    assert flops(lambda a, b: a @ b, A, B) == 2 * 8 * 16 * 32


def test_a_triangular_system_has_half_of_the_flops_of_its_product():
    def solved(matrix, right):
        return jax.scipy.linalg.solve_triangular(matrix, right, lower=True)

    assert flops(solved, jnp.ones((3, 5, 5)), jnp.ones((3, 5, 7))) == 3 * 5 * 5 * 7


def test_a_linear_system_has_the_flops_of_its_two_triangular_ones():
    assert flops(jnp.linalg.solve, jnp.eye(5), jnp.ones((5, 7))) == 2 * 5 * 5 * 7


def test_what_every_device_does_of_a_product_is_counted_as_often_as_there_are_devices():
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, whole = jax.sharding.PartitionSpec("rows"), jax.sharding.PartitionSpec()
    split = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(rows, whole), out_specs=rows)
    assert flops(split, A, B) == flops(jnp.matmul, A, B)


def test_batch_axes_multiply():
    assert (
        flops(lambda a, b: jnp.einsum("xik,xkj->xij", a, b), jnp.ones((5, 8, 16)), jnp.ones((5, 16, 32)))
        == 5 * 2 * 8 * 16 * 32
    )


def test_a_scan_counts_its_body_as_often_as_it_runs():
    def scanned(x, b):
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ b), None), x, length=7)[0]

    assert flops(jax.jit(scanned), A, jnp.ones((16, 16))) == 7 * 2 * 8 * 16 * 16


def test_a_gradient_costs_twice_the_forward_pass_more():
    def total(a, b):
        return jnp.sum((a @ b) ** 2)

    assert flops(jax.grad(total, argnums=(0, 1)), A, B) == 3 * 2 * 8 * 16 * 32


def test_a_branch_counts_its_dearest_side():
    def branch(is_deep, a, b):
        return jax.lax.cond(is_deep, lambda: a @ b @ b.T, lambda: a)

    assert flops(branch, True, A, B) == 2 * (2 * 8 * 16 * 32)


def test_memory_covers_arguments_and_result():
    assert cost(lambda a, b: a @ b, A, B).bytes >= 4 * (8 * 16 + 16 * 32 + 8 * 32)


def test_depth_is_the_longest_chain_and_a_scan_is_as_deep_as_it_is_long():
    x = jnp.ones((4, 4))
    assert depth(lambda x: (x @ x) + (x * 2), x) == 2
    assert depth(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) * 2, None), x, length=7)[0], x) == 14
