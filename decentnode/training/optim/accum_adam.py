"""Adam for small local batches: it updates the model in every step, but its moments only every K steps."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adam import adam
from torch.optim.adamw import adamw

Implementation = Literal["auto", "for_loop", "foreach", "fused"]
_FLAGS: dict[str, dict[str, bool | None]] = {
    "auto": {"foreach": None, "fused": None},  # decided when the parameters are known
    "for_loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}


class AccumAdam(Optimizer):
    """Adam whose moments use the mean gradient of K steps at once (Wang et al., ICLR 2025, Decent-DP).

    With m, v the moments, A the mean gradient so far, s = 1, 2, .. the local step and k = ceil(s/K):

        g <- g + lambda x;   A <- A + g/K;   m' = b1 m + (1 - b1) g;   v' = b2 v + (1 - b2) g^2
        x <- x - eta/(1 - b1^k) m' / (sqrt(v' / (1 - b2^k)) + eps)
        where K divides s:   m <- b1 m + (1 - b1) A;   v <- b2 v + (1 - b2) A^2;   A <- 0

    With K about the number of nodes, v has the variance of a global batch; K = 1 is Adam. State: m, v and,
    for K > 1, A: 3 d, and m' and v' during a step. `implementation` is one of torch's for Adam. `fused` needs
    floating-point parameters on a device for which torch has that kernel. `auto` uses it on CPU and CUDA, and
    is torch's default elsewhere.
    """

    _step_is: ClassVar[Callable[..., None]] = staticmethod(adam)
    _decouples_decay: ClassVar[bool] = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        accum_iter: int = 4,
        implementation: Implementation = "auto",
    ) -> None:
        """`accum_iter` is K; raises ValueError when a number is out of its range."""
        if implementation not in _FLAGS:
            raise ValueError(f"implementation must be one of {', '.join(_FLAGS)}, not {implementation!r}")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "accum_iter": accum_iter,
        }
        super().__init__(params, defaults | _FLAGS[implementation])
        for group in self.param_groups:
            _check(group)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Makes one step with the current gradients; returns the value of the closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["foreach"] is None and group["fused"] is None:
                group["fused"] = all(map(_is_fusible, group["params"])) or None
            if trained:
                self._step_group(group, trained)
        return loss

    def _step_group(self, group: dict[str, Any], trained: list[Tensor]) -> None:
        states = [self._state_of(parameter, group) for parameter in trained]
        steps = [state["step"] for state in states]
        if group["accum_iter"] == 1:
            self._move(
                group, trained, _column(states, "exp_avg"), v=_column(states, "exp_avg_sq"), steps=steps
            )
            return
        self._accumulate(group, trained, states)
        # Adam works on temporary copies: the moments stay unchanged until they are committed.
        m, v = ([t.clone() for t in _column(states, name)] for name in ("exp_avg", "exp_avg_sq"))
        self._move(group, trained, m, v=v, steps=steps)
        due = [state for state in states if state["steps_accumulated"] >= group["accum_iter"]]
        early = [state["step"] for state in states if state["steps_accumulated"] < group["accum_iter"]]
        if early:
            torch._foreach_sub_(early, 1.0)
        if due:
            _commit(due, *group["betas"])

    def _state_of(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """`step` counts committed moments (k - 1), on the device where the fused kernel needs it."""
        state: dict[str, Any] = self.state[parameter]
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
        if not state:
            device = parameter.device if group["fused"] else torch.device("cpu")
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        if group["accum_iter"] > 1 and "accumulated" not in state:
            state["accumulated"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["steps_accumulated"] = 0
        return state

    def _accumulate(self, group: dict[str, Any], trained: list[Tensor], states: list[dict[str, Any]]) -> None:
        """A <- A + g/K, where g includes the decay of Adam but not that of AdamW."""
        sums, share = _column(states, "accumulated"), 1 / group["accum_iter"]
        torch._foreach_add_(sums, _gradients(trained), alpha=share)
        if group["weight_decay"] and not self._decouples_decay:
            torch._foreach_add_(sums, trained, alpha=share * group["weight_decay"])
        for state in states:
            state["steps_accumulated"] += 1

    def _move(
        self, group: dict[str, Any], trained: list[Tensor], m: list[Tensor], v: list[Tensor],
        steps: list[Tensor],
    ) -> None:  # fmt: skip
        """Makes one step of Adam, which changes m, v and the counts of steps, too."""
        beta1, beta2 = group["betas"]
        self._step_is(
            trained, _gradients(trained), m, v, [], steps,
            foreach=group["foreach"], fused=group["fused"], amsgrad=False, beta1=beta1, beta2=beta2,
            lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"], maximize=False,
        )  # fmt: skip


class AccumAdamW(AccumAdam):
    """AccumAdam with decoupled weight decay: x <- (1 - eta lambda) x first (Wang et al., ICLR 2025).

    g stays as it is; everything else is as in AccumAdam, and K = 1 is AdamW.
    """

    _step_is: ClassVar[Callable[..., None]] = staticmethod(adamw)
    _decouples_decay: ClassVar[bool] = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        accum_iter: int = 4,
        implementation: Implementation = "auto",
    ) -> None:
        """`accum_iter` is K; raises ValueError when a number is out of its range."""
        super().__init__(params, lr, betas, eps, weight_decay, accum_iter, implementation)


def _is_fusible(parameter: Tensor) -> bool:
    return parameter.is_floating_point() and parameter.device.type in ("cpu", "cuda")


def _gradients(trained: Iterable[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in trained if parameter.grad is not None]


def _column(states: Iterable[dict[str, Any]], name: str) -> list[Tensor]:
    return [state[name] for state in states]


def _commit(states: list[dict[str, Any]], beta1: float, beta2: float) -> None:
    """m <- b1 m + (1 - b1) A;   v <- b2 v + (1 - b2) A^2;   A <- 0."""
    A, v = _column(states, "accumulated"), _column(states, "exp_avg_sq")
    torch._foreach_lerp_(_column(states, "exp_avg"), A, 1 - beta1)
    torch._foreach_mul_(v, beta2)
    torch._foreach_addcmul_(v, A, A, 1 - beta2)
    torch._foreach_zero_(A)
    for state in states:
        state["steps_accumulated"] = 0


def _check(group: dict[str, Any]) -> None:
    """Raises ValueError with the first number of a group that is out of its range."""
    for name in ("lr", "eps", "weight_decay"):
        if not group[name] >= 0:
            raise ValueError(f"{name} must be a number >= 0, not {group[name]!r}")
    betas = group["betas"]
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas must be two numbers >= 0 and < 1, not {betas!r}")
    steps = group["accum_iter"]
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"accum_iter must be a whole number > 0, not {steps!r}")
