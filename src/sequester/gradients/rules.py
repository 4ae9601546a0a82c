"""How windows move through PyTorch's functions, by family.

A family's rule is exact: it either proves that the result's windows lie on one known axis and
never met, or calls the result mixed. Functions named here are the only ones followed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sequester.gradients.rows import MIXED, Permutation, Rows, Sizes, reshaped
from sequester.gradients.tape import METADATA, RULES, Rule, Tape, mixing
from sequester.gradients.trees import tensors_in

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


def rule(*functions: Any) -> Callable[[Rule], Rule]:
    """Register a rule for functions; names are looked up where PyTorch keeps them."""

    def register(handler: Rule) -> Rule:
        for function in functions:
            RULES[function] = handler
        return handler

    return register


def named(names: str, *places: Any) -> list[Any]:
    """The functions of these names in `places` (torch, Tensor and functional unless given)."""
    found = []
    for name in names.split():
        for place in places or (torch, Tensor, F, torch.special, torch.linalg):
            function = getattr(place, name, None)
            if callable(function):
                found.append(function)
    return found


def _getters(names: str) -> list[Any]:
    return [getattr(Tensor, name).__get__ for name in names.split() if hasattr(Tensor, name)]


METADATA.update(
    named("size dim ndimension numel nelement stride is_contiguous element_size get_device", Tensor)
)
METADATA.update(named("is_floating_point is_complex __len__ is_set_to is_same_size __hash__"))
METADATA.update(
    _getters(
        "shape dtype device ndim layout requires_grad is_leaf is_cuda is_cpu is_mps is_nested "
        "is_sparse is_quantized is_meta is_mkldnn is_xla is_ipu is_xpu is_vulkan names _version"
    )
)


def lone_rows(tape: Tape, args: Arguments, kwargs: Keywords) -> tuple[int, Rows] | None:
    """The shared window axis of all arguments, counted from the end; None if they disagree."""
    found: tuple[int, Rows] | None = None
    for tensor in tensors_in(args, kwargs):
        state = tape.state(tensor)
        if state is None:
            continue
        if not isinstance(state, Rows):
            return None
        axis = state.axis - tensor.dim()
        if found is not None and (found[0] != axis or not found[1].matches(state)):
            return None
        found = (axis, state)
    return found


def with_attached(tape: Tape, value: Any, axis: int, rows: Rows) -> Any:
    """`value` with each weight in it given the window axis."""
    if isinstance(value, Tensor):
        return tape.attach(value, axis, rows) if tape.is_weight(value) else value
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(with_attached(tape, item, axis, rows) for item in value)
    return value


def own(tape: Tape, args: Arguments, kwargs: Keywords) -> bool:
    """Whether the first argument alone depends on people: sizes and places do not."""
    return all(tape.state(t) is None for t in tensors_in(args[1:], kwargs))


def has_weight(tape: Tape, args: Arguments, kwargs: Keywords) -> bool:
    """Whether a weight takes part."""
    return any(tape.is_weight(t) for t in tensors_in(args, kwargs))


def finish(tape: Tape, result: Any, axis: int, rows: Rows) -> Any:
    """Label each resulting tensor, its window axis counted from the end."""
    for tensor in result if isinstance(result, list | tuple) else [result]:
        if isinstance(tensor, Tensor):
            place = tensor.dim() + axis
            fits = 0 <= place and tensor.shape[place] == rows.size
            tape.label(tensor, rows.moved(place) if fits else MIXED)
    return result


ELEMENTWISE = (
    "add sub subtract mul multiply div divide true_divide rsub pow float_power neg negative "
    "reciprocal exp exp2 expm1 log log1p log2 log10 sqrt rsqrt square abs absolute sign sgn sin "
    "cos tan asin acos atan atan2 sinh cosh tanh sigmoid relu relu6 gelu silu mish softplus "
    "softsign elu celu selu leaky_relu rrelu hardtanh hardswish hardsigmoid hardshrink softshrink "
    "tanhshrink threshold logsigmoid clamp clip clamp_min clamp_max where masked_fill maximum "
    "minimum fmax fmin eq ne lt le gt ge equal_ isnan isinf isfinite logical_and logical_or "
    "logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor nan_to_num lerp "
    "addcmul addcdiv round floor ceil trunc frac remainder fmod floor_divide erf erfc sinc logit "
    "xlogy dropout feature_alpha_dropout alpha_dropout bernoulli contiguous clone detach to "
    "float double half bfloat16 long int bool short byte type type_as cpu alias "
    "zeros_like ones_like empty_like full_like rand_like randn_like "
    "binary_cross_entropy_with_logits binary_cross_entropy mse_loss l1_loss smooth_l1_loss "
    "huber_loss poisson_nll_loss kl_div gaussian_nll_loss soft_margin_loss "
    "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __pow__ __rpow__ "
    "__neg__ __abs__ __invert__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __xor__ "
    "__rand__ __ror__ __rxor__ __floordiv__ __rfloordiv__ __mod__ __rmod__"
)
IN_PLACE = (
    "add_ sub_ mul_ div_ neg_ exp_ sqrt_ clamp_ clamp_min_ clamp_max_ relu_ sigmoid_ tanh_ "
    "masked_fill_ zero_ fill_ copy_ addcmul_ dropout_ leaky_relu_ elu_ hardtanh_ "
    "__iadd__ __isub__ __imul__ __itruediv__"
)
SAME = {"to", "cpu", "clone", "contiguous", "detach", "long", "int"}
# Take `inplace`, by name or place.
WRITING = set(
    "relu relu6 elu celu selu leaky_relu rrelu hardtanh hardswish hardsigmoid silu mish threshold "
    "dropout alpha_dropout feature_alpha_dropout".split()
)


@rule(*named("new_zeros new_ones new_full new_empty new_tensor"))
def fresh(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """A constant that only takes dtype and device from people's data."""
    if any(tape.state(value) is not None for value in tensors_in(args[1:], kwargs)):
        return mixing(tape, func, args, kwargs)
    return tape.made(func(*args, **kwargs))


@rule(*named(ELEMENTWISE), Tensor.data.__get__)  # type: ignore[attr-defined]
def elementwise(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Broadcasting functions: the window axis stays, counted from the end."""
    if func.__name__ in ("to", "type_as") and tape.state(args[0]) is None:
        return func(*args, **kwargs)  # only takes dtype and device from people's data
    shared = lone_rows(tape, args, kwargs)
    if func.__name__ == "where" and len(args) + len(kwargs) < 3:
        return mixing(tape, func, args, kwargs)  # places of what is true, of everybody
    if shared is None:
        first = tape.state(args[0]) if args else None
        if isinstance(first, Permutation | Sizes) and func.__name__ in SAME:
            return tape.label(func(*args, **kwargs), first)
        return mixing(tape, func, args, kwargs)
    axis, rows = shared
    if has_weight(tape, args, kwargs):
        args = tuple(with_attached(tape, a, axis, rows) for a in args)
        kwargs = {key: with_attached(tape, a, axis, rows) for key, a in kwargs.items()}
    result = func(*args, **kwargs)
    if func.__name__ in WRITING and args and result is args[0]:
        tape.refuse_kept(result)
    return finish(tape, result, axis, rows)


@rule(*named(IN_PLACE))
def in_place(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Writing into a tensor that has the same window axis already."""
    shared = lone_rows(tape, args, kwargs)
    if shared is None or not isinstance(tape.state(args[0]), Rows):
        raise tape.unsupported("writes people's values in place into something shared")
    tape.refuse_kept(args[0])
    return elementwise(tape, func, args, kwargs)


REDUCING = (
    "sum mean nansum nanmean amax amin max min prod any all std var logsumexp argmax argmin norm "
    "vector_norm cumsum cumprod softmax log_softmax softmin cummax logcumsumexp median"
)
KEEPS = {"cumsum", "cumprod", "softmax", "log_softmax", "softmin", "cummax", "logcumsumexp"}


@rule(*named(REDUCING))
def reducing(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Functions along dimensions, exact as long as none of them is the window axis."""
    tensor: Tensor = args[0]
    rows = tape.state(tensor)
    name = func.__name__
    dims = kwargs.get("dim", kwargs.get("axis"))
    place = 2 if name.endswith("norm") else 1
    if dims is None and len(args) > place:
        dims = None if isinstance(args[place], bool) else args[place]
    if name in ("max", "min") and isinstance(dims, Tensor):
        return elementwise(tape, func, args, kwargs)
    if not isinstance(rows, Rows) or dims is None:
        return mixing(tape, func, args, kwargs)
    gone = {d % tensor.dim() for d in ([dims] if isinstance(dims, int) else dims)}
    if rows.axis in gone or not gone:
        return mixing(tape, func, args, kwargs)
    plain = len(args) <= 3 and not kwargs.keys() - {"dim", "axis", "keepdim"}
    if name == "mean" and plain and tensor.dtype in (torch.float32, torch.float64):
        # The same numbers; but the gradient of PyTorch's mean is written out in full.
        keep = bool(kwargs.get("keepdim", len(args) > 2 and args[2]))
        result = tensor.sum(dims, keepdim=keep) / math.prod(tensor.shape[d] for d in gone)
    else:
        result = func(*args, **kwargs)
    first = result if isinstance(result, Tensor) else result[0]
    kept = name in KEEPS or first.dim() == tensor.dim()
    axis = rows.axis if kept else rows.axis - sum(d < rows.axis for d in gone)
    return finish(tape, result, axis - first.dim(), rows)


@rule(*named("view reshape flatten unflatten view_as reshape_as"))
def reshaping(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Reshapes, by the arithmetic of `rows.reshaped`."""
    rows = tape.state(args[0])
    if not func.__name__.endswith("_as") and not own(tape, args, kwargs):
        return mixing(tape, func, args, kwargs)
    result = func(*args, **kwargs)
    if not isinstance(rows, Rows):
        return tape.label(result, MIXED if rows is not None else None)
    if result.numel() != args[0].numel() or result.dtype != args[0].dtype:
        return tape.label(result, MIXED)
    return tape.label(result, reshaped(args[0].shape, rows, result.shape) or MIXED)


@rule(*named("permute transpose t movedim moveaxis swapaxes swapdims"))
def permuting(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Dimensions trade places: the same is done to a tiny tensor to see where the axis went."""
    rows = tape.state(args[0])
    result = func(*args, **kwargs)
    if not isinstance(rows, Rows):
        return tape.label(result, MIXED)
    marker = torch.empty([2 if d == rows.axis else 1 for d in range(args[0].dim())])
    moved = func(marker, *args[1:], **kwargs).shape
    return tape.label(result, rows.moved(list(moved).index(2)))


@rule(*_getters("T mT H mH"))
def transposing(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """`x.T` and its kin."""
    return permuting(tape, func, args, kwargs)


@rule(*named("squeeze unsqueeze expand expand_as broadcast_to"))
def resizing(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Dimensions of one entry come and go."""
    tensor, rows, name = args[0], tape.state(args[0]), func.__name__
    if name != "expand_as" and not own(tape, args, kwargs):
        return mixing(tape, func, args, kwargs)
    result = func(*args, **kwargs)
    if not isinstance(rows, Rows):
        return tape.label(result, MIXED if rows is not None else None)
    if name == "unsqueeze":
        dim = (args[1] if len(args) > 1 else kwargs["dim"]) % result.dim()
        axis = rows.axis + (dim <= rows.axis)
    elif name == "squeeze":
        dims = kwargs.get("dim", args[1:] or range(tensor.dim()))
        dims = dims[0] if isinstance(dims, tuple) and isinstance(dims[0], tuple | list) else dims
        gone = {d % tensor.dim() for d in ([dims] if isinstance(dims, int) else dims)}
        gone = {d for d in gone if tensor.shape[d] == 1}
        if rows.axis in gone:
            return tape.label(result, MIXED)
        axis = rows.axis - sum(d < rows.axis for d in gone)
    else:
        axis = rows.axis + result.dim() - tensor.dim()
    return finish(tape, result, axis - result.dim(), rows)


# Where the dimension stands among positional arguments, and what it is if it is not given.
ALONG = {
    "chunk": (2, 0), "split": (2, 0), "tensor_split": (2, 0), "split_with_sizes": (2, 0),
    "unbind": (1, 0), "select": (1, None), "narrow": (1, None), "index_select": (1, None),
    "flip": (1, None), "roll": (2, None), "repeat_interleave": (2, None),
    "glu": (1, -1), "diff": (2, -1), "sort": (1, -1), "argsort": (1, -1),
    "topk": (2, -1), "kthvalue": (2, -1),
}  # fmt: skip


@rule(*named(" ".join(name for name in ALONG if "sort" not in name)))
def along_one(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Functions along dimensions none of which is the window axis."""
    tensor, rows, name = args[0], tape.state(args[0]), func.__name__
    if not isinstance(rows, Rows) or has_weight(tape, args[1:], kwargs):
        return mixing(tape, func, args, kwargs)
    place, default = ALONG[name]
    if name == "flip":
        dim = kwargs.get("dims", args[1] if len(args) == 2 else args[1:])
    else:
        dim = args[place] if len(args) > place else default
        dim = kwargs.get("dim", kwargs.get("dims", dim))
    if name in ("sort", "argsort") and isinstance(dim, bool):  # `sort(stable, …)` and its kin
        dim = None
    dims = [dim] if isinstance(dim, int) else dim
    others = [t for t in tensors_in(args[1:], kwargs) if tape.state(t) is not None]
    if not dims or others or rows.axis in {d % tensor.dim() for d in dims}:
        return mixing(tape, func, args, kwargs)
    result = func(*args, **kwargs)
    first = result if isinstance(result, Tensor) else result[0]
    removed = first.dim() < tensor.dim() and dims[0] % tensor.dim() < rows.axis
    return finish(tape, result, rows.axis - removed - first.dim(), rows)


@rule(*named("cat concat concatenate stack hstack"))
def joining(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Joining tensors side by side, weights and constants among them."""
    shared = lone_rows(tape, args, kwargs)
    tensors = args[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    name = func.__name__
    if shared is None or name == "hstack" or len({t.dim() for t in tensors}) != 1:
        return mixing(tape, func, args, kwargs)
    axis, rows = shared
    depth = tensors[0].dim()
    place = dim % (depth + (name == "stack"))
    if name != "stack" and place == depth + axis:
        return mixing(tape, func, args, kwargs)
    tensors = [with_attached(tape, t, axis, rows) for t in tensors]
    result = func(tensors, dim=dim)
    if name == "stack" and place > depth + axis:
        axis -= 1
    return finish(tape, result, axis, rows)


@rule(F.scaled_dot_product_attention)
def attending(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Attention within each window: windows must be a batch dimension of q, k and v."""
    names = ("query", "key", "value", "attn_mask")
    inputs = [*args[:4], *(kwargs[n] for n in names if n in kwargs)]
    inputs = [t for t in inputs if isinstance(t, Tensor)]
    shared = lone_rows(tape, tuple(inputs), {})
    if has_weight(tape, args, kwargs):
        raise tape.unsupported("attends to a weight")
    if shared is None or shared[0] >= -2:
        return mixing(tape, func, args, kwargs)
    return finish(tape, func(*args, **kwargs), *shared)


@rule(F.pad, torch.constant_pad_nd)
def padding(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Padding of trailing dimensions."""
    tensor, pad = args[:2]
    rows = tape.state(tensor)
    if (
        not isinstance(rows, Rows)
        or not own(tape, args, kwargs)
        or rows.axis >= tensor.dim() - len(pad) // 2
    ):
        return mixing(tape, func, args, kwargs)
    return finish(tape, func(*args, **kwargs), rows.axis - tensor.dim(), rows)


@rule(*named("avg_pool1d max_pool1d adaptive_avg_pool1d adaptive_max_pool1d avg_pool2d max_pool2d"))
@rule(*named("normalize one_hot nll_loss interpolate"))
def batchwise(tape: Tape, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Functions that treat the first dimension as a batch and nothing else."""
    shared = lone_rows(tape, args, kwargs)
    tensor = args[0]
    rows = tape.state(tensor)
    if shared is None or not isinstance(rows, Rows) or rows.axis != 0 or tensor.dim() < 1:
        return mixing(tape, func, args, kwargs)
    name = func.__name__
    classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    if name == "one_hot" and not (isinstance(classes, int) and classes > 0):
        return mixing(tape, func, args, kwargs)  # as many as the largest of everybody's
    if (
        name == "normalize"
        and kwargs.get("dim", args[2] if len(args) > 2 else 1) % tensor.dim() == 0
    ):
        return mixing(tape, func, args, kwargs)
    if "pool" in name and tensor.dim() < (4 if name.endswith("2d") else 3):
        return mixing(tape, func, args, kwargs)
    result = func(*args, **kwargs)
    return finish(tape, result, -result.dim(), rows)
