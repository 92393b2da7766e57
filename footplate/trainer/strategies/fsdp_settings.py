"""Reads `fsdp` and `fsdp_config`, and chooses the modules of a model that FSDP gathers separately."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import nn

from footplate.contract.arguments.fsdp import FsdpConfig
from footplate.contract.errors import did_you_mean
from footplate.trainer.activations import repeated_layers


@dataclass(frozen=True)
class FsdpSettings(FsdpConfig):
    def units(self, model: nn.Module) -> list[nn.Module]:
        """Returns the modules that are gathered separately, inner ones first. The root module gathers the rest.

        A module that shares tied weights with another is left to the root. Otherwise the weight would be gathered with
        one module and missing in the other.
        """

        def uses_in(unit: nn.Module) -> Counter[int]:
            return Counter(id(p) for module in unit.modules() for p in module._parameters.values() if p is not None)

        in_model = uses_in(model)
        units = [(unit, uses_in(unit)) for unit in self._chosen(model)]
        return [unit for unit, uses in units if all(in_model[parameter] == uses[parameter] for parameter in uses)]

    def _chosen(self, model: nn.Module) -> list[nn.Module]:
        if self.auto_wrap_policy == "NO_WRAP":
            return []
        if self.auto_wrap_policy == "SIZE_BASED_WRAP" or self.min_num_params:
            return _large(model, self.min_num_params or 100_000_000)
        names = self.layers or tuple(getattr(model, "_no_split_modules", None) or ())
        if not names:
            return list(repeated_layers(model))
        layers = [
            module
            for module in reversed(list(model.modules()))
            if type(module).__name__ in names and module is not model
        ]
        class_names = {type(module).__name__ for module in model.modules()}
        missing = [name for name in self.layers if name not in class_names]
        if missing:
            hint = did_you_mean(missing[0], class_names) or f"it has {', '.join(sorted(class_names))}"
            raise ValueError(f"transformer_layer_cls_to_wrap names {missing[0]!r}, which the model lacks: {hint}")
        return layers


def _large(model: nn.Module, at_least: int) -> list[nn.Module]:
    """Returns modules with at least this number of parameters, not counting modules inside them that are chosen."""
    chosen: list[nn.Module] = []

    def unchosen_parameters(module: nn.Module) -> int:
        own_count = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        count = own_count + sum(unchosen_parameters(child) for child in module.children())
        if count >= at_least and module is not model and not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            chosen.append(module)
            return 0
        return count

    unchosen_parameters(model)
    return chosen
