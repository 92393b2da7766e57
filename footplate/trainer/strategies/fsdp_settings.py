"""What `fsdp` and `fsdp_config` ask for, and which modules of a model that makes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import nn

from footplate.contract.arguments.fsdp import SHARDED, FsdpConfig
from footplate.contract.errors import did_you_mean
from footplate.trainer.activations import repeated_layers

__all__ = ["SHARDED", "FsdpSettings"]


@dataclass(frozen=True)
class FsdpSettings(FsdpConfig):
    def units(self, model: nn.Module) -> list[nn.Module]:
        """The modules that are gathered each by itself, inner ones first. The model as a whole takes what is left, and
        what is tied across them: it would be gathered with one, and missing in the other."""
        homes = [id(each) for module in model.modules() for each in module._parameters.values() if each is not None]
        tied = Counter(homes)

        def shares(unit: nn.Module) -> bool:
            own = Counter(id(e) for module in unit.modules() for e in module._parameters.values() if e is not None)
            return any(tied[each] != count for each, count in own.items())

        return [each for each in self._chosen(model) if not shares(each)]

    def _chosen(self, model: nn.Module) -> list[nn.Module]:
        if self.auto_wrap_policy == "NO_WRAP":
            return []
        if self.auto_wrap_policy == "SIZE_BASED_WRAP" or self.min_num_params:
            return _large(model, self.min_num_params or 100_000_000)
        names = self.layers or tuple(getattr(model, "_no_split_modules", None) or ())
        if not names:
            return list(repeated_layers(model))
        found = [each for each in reversed(list(model.modules())) if type(each).__name__ in names and each is not model]
        known = {type(each).__name__ for each in model.modules()}
        missing = [name for name in self.layers if name not in known]
        if missing:
            hint = did_you_mean(missing[0], known) or f"it has {', '.join(sorted(known))}"
            raise ValueError(f"transformer_layer_cls_to_wrap names {missing[0]!r}, and the model has none: {hint}")
        return found


def _large(model: nn.Module, at_least: int) -> list[nn.Module]:
    """Modules with so many parameters that are in no chosen one within them."""
    found: list[nn.Module] = []

    def left(module: nn.Module) -> int:
        own = sum(each.numel() for each in module.parameters(recurse=False))
        count = own + sum(left(child) for child in module.children())
        if count >= at_least and module is not model and not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            found.append(module)
            return 0
        return count

    left(model)
    return found
