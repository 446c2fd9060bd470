"""Muon for the matrices of hidden layers and AdamW for everything else, as one optimizer."""

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from decentnode.core.registry import guess
from decentnode.training.optim.parameter_groups import decay_groups
from decentnode.training.optim.uncompiled import uncompiled

MOST_NAMES = 8
"""Names of parameters in a message, at most."""


class Muon(Optimizer):
    """Muon for the matrices of hidden layers, AdamW for everything else (Jordan et al., 2024).

    A matrix W has the gradient G and the momentum B. NS is Newton-Schulz, which moves singular values near 1,
    and s is a factor for the shape of W:

        B <- mu B + (1 - mu) G;   W <- (1 - eta lambda) W - eta s NS(mu B + (1 - mu) G)

    Both parts are torch's own, `torch.optim.Muon` (2.9 or newer) and `torch.optim.AdamW`, and so are the
    defaults. Options with `adamw_` are for AdamW's parameters: biases, gains, embeddings and the last layer.
    `adjust_lr_fn` chooses s. `original`: sqrt(max(1, rows/columns)); `match_rms_adamw`: 0.2 sqrt(max(rows,
    columns)), with which matrices take rates and decays that suit AdamW (Liu et al., 2025, arXiv 2502.16982,
    section 2.2).

    Convolution kernels go to AdamW, because torch's Muon refuses what has not two dimensions. Its authors
    flatten them to matrices, all but the first. The first group is that of Muon, the others are AdamW's.
    """

    def __init__(
        self,
        params: nn.Module | Iterable[Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        ns_steps: int = 5,
        eps: float = 1e-7,
        adjust_lr_fn: Literal["original", "match_rms_adamw"] = "original",
        adamw_params: Sequence[str] = (),
        hidden_only: bool = True,
        adamw_lr: float = 1e-3,
        adamw_betas: tuple[float, float] = (0.9, 0.999),
        adamw_eps: float = 1e-8,
        adamw_weight_decay: float = 1e-2,
    ) -> None:
        """`params`: a module, for which `muon_groups` is called; its groups; or parameters without names.

        `adamw_params` and `hidden_only` are those of `muon_groups`, for a module. Of parameters without names
        all matrices are Muon's. Raises ValueError for an option out of its range, where there is no matrix,
        and with torch before 2.9.
        """
        if isinstance(adamw_params, str) or not all(isinstance(pattern, str) for pattern in adamw_params):
            raise ValueError(f"adamw_params must be a list of patterns, not {adamw_params!r}")
        if not hasattr(torch.optim, "Muon"):
            raise ValueError(f"needs torch 2.9 or newer, not {torch.__version__}; use AdamW")
        if isinstance(params, nn.Module):
            params = muon_groups(params, adamw_params, hidden_only)
        listed: list[Any] = list(params)
        if listed and all(isinstance(group, dict) and "use_muon" in group for group in listed):
            # Torch has no optimizer without groups, and one of the two may have no parameters.
            uses = {bool(group["use_muon"]) for group in listed}
            groups = [*listed, *({"params": [], "use_muon": absent} for absent in {True, False} - uses)]
        elif not all(isinstance(parameter, Tensor) for parameter in listed):
            raise ValueError("params must be a module, parameters without names, or groups of muon_groups")
        elif not any(map(_is_matrix, listed)):
            raise ValueError("none of these parameters is a matrix; use AdamW")
        else:
            groups = _two_groups(_is_matrix, listed)
        muon = uncompiled(torch.optim.Muon)(
            [group for group in groups if group["use_muon"]],
            lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov,
            ns_coefficients=tuple(ns_coefficients), ns_steps=ns_steps, eps=eps, adjust_lr_fn=adjust_lr_fn,
        )  # fmt: skip
        adamw = uncompiled(torch.optim.AdamW)(
            [group for group in groups if not group["use_muon"]],
            lr=adamw_lr, betas=tuple(adamw_betas), eps=adamw_eps, weight_decay=adamw_weight_decay,
        )  # fmt: skip
        self._parts = {True: muon, False: adamw}
        super().__init__([*muon.param_groups, *adamw.param_groups], {})

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
        for use_muon, part in self._parts.items():
            # A loaded state is new objects.
            part.state = self.state
            part.param_groups = [group for group in self.param_groups if group["use_muon"] == use_muon]
            part.step()
        return loss

    def __getstate__(self) -> dict[str, Any]:
        # Torch names what a copy gets.
        return super().__getstate__() | {"_parts": self._parts}


def muon_groups(
    module: nn.Module,
    adamw_params: Sequence[str] = (),
    hidden_only: bool = True,
    parameters: Iterable[tuple[str, Parameter]] | None = None,
) -> list[dict[str, Any]]:
    """Two groups for `Muon`: the matrices of hidden layers, and all other parameters, for AdamW.

    A matrix is real and has two dimensions; biases and parameters of norms do not count. AdamW also gets
    those with a name that one of `adamw_params` matches (* for any letters) and, with `hidden_only`, those of
    embeddings and of the last layer, as Muon's authors advise. An embedding is an `nn.Embedding` or
    `nn.EmbeddingBag`, and the last layer the last `nn.Linear` in the order of the modules. If that is as wide
    as an embedding, the network ends with this embedding, as GPT-2 does, and all linear layers are hidden.

    `parameters`: some of the module's with their names, by default all; frozen ones are left out. Raises
    ValueError for a pattern that matches nothing, and where the module has no matrix for Muon.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            names.setdefault(id(parameter), []).append(name)
    chosen: set[int] = set()
    for pattern in adamw_params:
        found = {key for key, aliases in names.items() if any(fnmatchcase(a, pattern) for a in aliases)}
        if not found:
            known = [aliases[0] for aliases in names.values()]
            layers = dict.fromkeys(f"{name.rpartition('.')[0]}.*" for name in known if "." in name)
            known = [*layers, *known]
            hint = guess(pattern, known) or f" (known: {', '.join(known[:MOST_NAMES])})"
            raise ValueError(f"adamw_params: no parameter matches '{pattern}'{hint}")
        chosen |= found
    if hidden_only:
        embeddings = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
        last = [part for part in module.modules() if isinstance(part, nn.Linear)][-1:]
        if any(part.out_features == embedding.embedding_dim for part in last for embedding in embeddings):
            last = []
        chosen |= {id(p) for part in (*embeddings, *last) for p in part.parameters()}
    # Biases and parameters of norms are those that do not decay.
    weights = [p for group in decay_groups(module, 1) if group["weight_decay"] for p in group["params"]]
    matrices = {id(p) for p in weights if _is_matrix(p)} - chosen
    if not matrices:
        kind = "hidden matrix" if hidden_only else "matrix"
        raise ValueError(f"no {kind} of {type(module).__name__} is left for it; use AdamW")
    given = module.named_parameters() if parameters is None else parameters
    trained = list({id(p): p for _, p in given if p.requires_grad}.values())
    return _two_groups(lambda p: id(p) in matrices, trained)


def _two_groups(is_muons: Callable[[Tensor], bool], parameters: Sequence[Tensor]) -> list[dict[str, Any]]:
    """The group of Muon and that of AdamW."""
    return [
        {"params": [p for p in parameters if is_muons(p) == use_muon], "use_muon": use_muon}
        for use_muon in (True, False)
    ]


def _is_matrix(parameter: Tensor) -> bool:
    return parameter.ndim == 2 and not parameter.is_complex()
