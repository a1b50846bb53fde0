"""No copy in, no copy out."""

from __future__ import annotations

import array
import gc
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import tensors

import regard


def address(x: Any) -> int:
    return numpy.asarray(x).__array_interface__["data"][0]


class Foreign:
    """A tensor of another library: DLPack and nothing else."""

    def __init__(self, numbers: numpy.ndarray) -> None:
        self.numbers = numbers

    def __dlpack__(self, **options: Any) -> Any:
        return self.numbers.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.numbers.__dlpack_device__()


class OldForeign(Foreign):
    """The same before DLPack 1.0."""

    def __dlpack__(self, *, stream: Any = None) -> Any:  # type: ignore[override]
        return self.numbers.__dlpack__()


def plain(shape: tuple[int, ...] = (1, 2, 3, 4)) -> Any:
    """A tensor of the standard library."""
    size = int(numpy.prod(shape))
    return memoryview(array.array("f", [n / size for n in range(size)])).cast("B").cast("f", shape)


@pytest.mark.parametrize("wrap", [lambda x: x, Foreign, OldForeign], ids=["buffer", "dlpack", "dlpack before 1.0"])
def test_inputs_are_read_where_they_lie(wrap: Any) -> None:
    """What is written between the passes is what the backward pass reads."""
    given = tensors("softmax")
    attend = regard.Operator()
    grad_out = numpy.ones_like(attend(**given))
    out, saved = attend.forward(**{name: wrap(tensor) for name, tensor in given.items()})
    assert numpy.array_equal(numpy.asarray(out), attend(**given))
    before = attend.backward(saved, grad_out, ["q"])["q"]
    given["v"] *= 2
    after = attend.backward(saved, grad_out, ["q"])["q"]
    assert not numpy.array_equal(before, after)


def test_strided_inputs_are_copied_once() -> None:
    given = tensors("softmax")
    expected = regard.attention(**given)
    for change in (
        lambda x: numpy.asfortranarray(x),
        lambda x: numpy.ascontiguousarray(x[..., ::-1])[..., ::-1],
        lambda x: numpy.ascontiguousarray(numpy.swapaxes(x, 1, 2)).swapaxes(1, 2),
        lambda x: numpy.repeat(x, 2, axis=3)[..., ::2],
    ):
        strided = {name: change(tensor) for name, tensor in given.items()}
        assert numpy.array_equal(regard.attention(**strided), expected)
        foreign = {name: Foreign(tensor) for name, tensor in strided.items()}
        assert numpy.array_equal(numpy.asarray(regard.attention(**foreign)), expected)
    # A copy stays what it was.
    strided = numpy.swapaxes(numpy.ascontiguousarray(numpy.swapaxes(given["v"], 1, 2)), 1, 2)
    _, saved = regard.Operator().forward(given["q"], given["k"], strided)
    before = saved.backward(expected, ["q"])["q"].tolist()
    strided *= 2
    assert saved.backward(expected, ["q"])["q"].tolist() == before


def test_unaligned_and_read_only_inputs() -> None:
    given = tensors("softmax")
    expected = regard.attention(**given)
    raw = b"\0" + given["q"].tobytes()
    unaligned = numpy.frombuffer(raw, numpy.float32, offset=1).reshape(given["q"].shape)
    assert not unaligned.flags.aligned and not unaligned.flags.writeable
    assert numpy.array_equal(regard.attention(unaligned, given["k"], given["v"]), expected)
    given["k"].flags.writeable = False
    assert numpy.array_equal(regard.attention(**given), expected)


def test_inputs_are_held_and_let_go() -> None:
    memory = bytearray(4 * 24)
    q = memoryview(memory).cast("f", (1, 2, 3, 4))
    _, saved = regard.Operator().forward(q, q, q)
    del q
    with pytest.raises(BufferError):
        memory.append(0)
    del saved
    gc.collect()
    memory.append(0)

    given = tensors("softmax")
    counts = [sys.getrefcount(tensor) for tensor in given.values()]
    out, saved = regard.Operator().forward(**{name: Foreign(tensor) for name, tensor in given.items()})
    assert all(sys.getrefcount(tensor) > count for tensor, count in zip(given.values(), counts))
    del out, saved
    gc.collect()
    assert [sys.getrefcount(tensor) for tensor in given.values()] == counts


def test_outputs_are_of_the_kind_of_the_queries() -> None:
    given = tensors("softmax")
    assert type(regard.attention(**given)) is numpy.ndarray
    out, saved = regard.Operator().forward(plain(), plain(), plain())
    assert type(out) is regard.Array
    assert type(saved.backward(out)["q"]) is regard.Array
    assert type(regard.attention(out, plain(), plain())) is regard.Array


def test_outputs_are_shared_without_a_copy() -> None:
    out = regard.attention(plain(), plain(), plain())
    view = memoryview(out)
    assert (view.format, view.shape, view.c_contiguous, view.readonly) == ("f", (1, 2, 3, 4), True, False)
    first = numpy.asarray(out)
    assert address(first) == address(numpy.asarray(view)) == address(numpy.from_dlpack(out))
    first[...] = 7
    assert out.tolist() == view.tolist() == numpy.full((1, 2, 3, 4), 7.0).tolist()
    assert (out.shape, out.dtype, out.ndim, out.size, out.nbytes, len(out)) == ((1, 2, 3, 4), "float32", 4, 24, 96, 1)
    assert repr(out) == "regard.Array(shape=(1, 2, 3, 4), dtype=float32)"
    assert bytes(out) == first.tobytes()


def test_outputs_outlive_what_made_them() -> None:
    out = regard.attention(plain(), plain(), plain())
    expected = out.tolist()
    arrays = [numpy.asarray(out), numpy.from_dlpack(out), memoryview(out)]
    del out
    gc.collect()
    assert all(x.tolist() == expected for x in arrays)


def test_dlpack_of_either_version() -> None:
    out = regard.attention(plain(), plain(), plain())
    assert out.__dlpack_device__() == (1, 0)
    assert "dltensor_versioned" in repr(out.__dlpack__(max_version=(1, 1)))
    assert '"dltensor"' in repr(out.__dlpack__())

    class Old:
        __dlpack_device__ = staticmethod(out.__dlpack_device__)

        def __dlpack__(self, **_: Any) -> Any:
            return out.__dlpack__()

    assert address(numpy.from_dlpack(Old())) == address(out)
    assert numpy.array_equal(
        numpy.asarray(regard.attention(Old(), Old(), Old())), regard.attention(*[numpy.asarray(out)] * 3)
    )
    with pytest.raises(BufferError, match="stream"):
        out.__dlpack__(stream=1)
    with pytest.raises(BufferError, match="not moved"):
        out.__dlpack__(dl_device=(2, 0))


def test_dlpack_copies_when_asked() -> None:
    out = regard.attention(plain(), plain(), plain())

    class Copied:
        __dlpack_device__ = staticmethod(out.__dlpack_device__)

        def __dlpack__(self, **options: Any) -> Any:
            return out.__dlpack__(**{**options, "copy": True})

    copy = numpy.from_dlpack(Copied())
    assert address(copy) != address(out) and copy.tolist() == out.tolist()


def test_a_capsule_is_taken_once() -> None:
    out = regard.attention(plain(), plain(), plain())
    capsule = out.__dlpack__()

    class Used:
        __dlpack_device__ = staticmethod(out.__dlpack_device__)

        def __dlpack__(self, **_: Any) -> Any:
            return capsule

    regard.attention(Used(), plain(), plain())
    with pytest.raises(TypeError, match="capsule"):
        regard.attention(Used(), plain(), plain())


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no count of pages here")
def test_memory_is_given_back() -> None:
    """Many calls leave no more behind than a few."""
    given = tensors("linear", tokens=2048)
    attend = regard.Operator("linear")

    def work(times: int) -> int:
        for _ in range(times):
            out, saved = attend.forward(**{name: Foreign(tensor) for name, tensor in given.items()})
            gradients = saved.backward(out)
            # One is taken, two are capsules that nobody takes.
            taken = numpy.from_dlpack(gradients["q"])
            capsules = gradients["k"].__dlpack__(), gradients["v"].__dlpack__(max_version=(1, 0))
            del out, saved, gradients, taken, capsules
        return resident()

    before = work(20)
    # The smallest array has 160 kB: kept, those of all rounds would be 32 MB.
    assert work(200) - before < 10_000_000


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is kept on Linux alone")
def test_the_next_call_has_the_memory_of_the_last() -> None:
    """Large arrays that are gone make room for those of the next call, until they are released."""
    given = tensors("linear", tokens=65536)
    attend = regard.Operator("linear")
    first = attend(**given)
    assert first.nbytes >= 1 << 20
    place = address(first)
    del first
    assert address(attend(**given)) == place
    held = resident()
    regard.release_memory()
    assert held - resident() >= 1 << 20
