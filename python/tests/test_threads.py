"""Python goes on while a kernel runs, in other threads and in forked children."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy
import pytest
from conftest import tensors

import regard


def long_work() -> tuple[numpy.ndarray, ...]:
    rng = numpy.random.default_rng(0)
    return tuple(rng.standard_normal((3, 1, 8, 4096, 64), dtype=numpy.float32))


def test_the_interpreter_is_free_while_a_kernel_runs() -> None:
    q, k, v = long_work()
    regard.set_threads(1)
    attend = regard.Operator()
    state: dict[str, object] = {}

    def work() -> None:
        state["started"] = True
        out, saved = attend.forward(q, k, v)
        state["forward"] = out
        saved.backward(out)
        state["done"] = True

    worker = threading.Thread(target=work)
    seen = {"forward": 0, "backward": 0}
    worker.start()
    while not state.get("done"):
        if state.get("started"):
            seen["backward" if "forward" in state else "forward"] += 1
        time.sleep(0.001)
    worker.join()
    # Behind a lock, this thread would have come round once or twice in each.
    assert min(seen.values()) > 10, seen


def test_threads_compute_at_the_same_time() -> None:
    given = tensors("mgk", tokens=200)
    attend = regard.Operator("mgk", causal=True)
    expected = attend(**given)
    outs: list[numpy.ndarray] = []

    def work() -> None:
        for _ in range(5):
            outs.append(attend(**given))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(outs) == 20 and all(numpy.array_equal(out, expected) for out in outs)


def test_a_decoder_is_used_by_one_thread() -> None:
    q, k, v = numpy.random.default_rng(0).standard_normal((3, 64, 8, 1, 64), dtype=numpy.float32)
    decoder = regard.Operator("softmax", causal=True).decoder()
    refused: list[Exception] = []
    steps: list[int] = []

    def work() -> None:
        for _ in range(100):
            try:
                decoder.step(q, k, v)
                steps.append(1)
            except RuntimeError as error:
                refused.append(error)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert decoder.tokens == len(steps) == 300 - len(refused)
    assert all("another thread" in str(error) for error in refused)


def test_number_of_threads() -> None:
    regard.set_threads(3)
    assert regard.get_threads() == 3
    regard.set_threads(0)
    assert regard.get_threads() >= 1
    for bad in (-1, 10**6, 2**40):
        with pytest.raises(ValueError, match="number of threads out of range"):
            regard.set_threads(bad)
    with pytest.raises(TypeError):
        regard.set_threads("two")  # type: ignore[arg-type]


def test_scratch_memory_is_released() -> None:
    given = tensors("mgk", tokens=300)
    expected = regard.attention(**given, mechanism="mgk")
    regard.release_memory()
    assert numpy.array_equal(regard.attention(**given, mechanism="mgk"), expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes() -> None:
    given = tensors("softmax", tokens=300)
    expected = regard.attention(**given)
    child = os.fork()
    if child == 0:
        # Nothing of the test runner may go on here.
        same = numpy.array_equal(regard.attention(**given), expected)
        os._exit(0 if same else 1)
    for _ in range(3000):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        time.sleep(0.01)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child waits for threads that it does not have")
    assert os.waitstatus_to_exitcode(status) == 0
