"""Finds rules through the entry-point group ``onnxfix.rules`` and selects those of a run."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.rewrite import catalog, packs
from onnxfix.rewrite.packs import BUILT_IN
from onnxfix.rule import Rule


class Registry(NamedTuple):
    """All rules that were found, by code, and warnings about packs that cannot be loaded. ``broken``: why the built-in
    rules are missing, or ""."""

    rules: tuple[Rule, ...]
    warnings: tuple[str, ...]
    broken: str = ""

    def get(self, code_or_name: str) -> Rule:
        """One rule by its code or name, in any case.

        Raises:
            UsageError: there is no such rule.
        """
        wanted = code_or_name.strip().lower()
        for rule in self.rules:
            if wanted in (rule.code.lower(), rule.name):
                return rule
        raise UsageError(f"no rule {code_or_name!r}{self._meant(code_or_name)}; 'onnxfix rules' lists them")

    def near(self, text: str, most: int = 3) -> list[Rule]:
        """The rules that somebody who wrote ``text`` may have meant: ``CST1`` and ``CST-001`` are CST001."""
        from difflib import get_close_matches  # lazy: start-up, seldom used

        spelled = re.fullmatch(r"([A-Za-z]{3})[-_ ]?0*(\d+)", text.strip())
        code = f"{spelled[1].upper()}{int(spelled[2]):03}" if spelled is not None else ""
        same = [rule for rule in self.rules if rule.code == code]
        if same:
            return same
        known = {rule.name: rule for rule in self.rules} | {rule.code.lower(): rule for rule in self.rules}
        found = get_close_matches(text.strip().lower().replace(" ", "-").replace("_", "-"), known, most, 0.7)
        return list({known[name].code: known[name] for name in found}.values())

    def _meant(self, text: str) -> str:
        """`` (did you mean CST001 redundant-cast-chain?)``, "" if no rule is near."""
        names = [f"{rule.code} {rule.name}" for rule in self.near(text)]
        return f" (did you mean {', or '.join(names)}?)" if names else ""

    def choose(self, select: Sequence[str] | None = None, ignore: Sequence[str] | None = None) -> list[Rule]:
        """Rules by selectors: a code, the beginning of codes (``CST``), a name, or ``ALL``.

        Without ``select``, the rules that are on by default. A rule that is off by default is selected only by its own
        code or name, not by a family or ``ALL``. The more specific selector wins, as in ruff:
        ``select=["CST"], ignore=["CST002"]`` selects the rest of the family.

        Raises:
            UsageError: a selector matches no rule.
            OnnxfixError: the built-in rules could not be loaded; without them nothing would be found.
        """
        if self.broken:
            raise OnnxfixError(self.broken)
        self._known((*(select or ()), *(ignore or ())))
        chosen = []
        for rule in self.rules:
            wanted = max((_specificity(s, rule) for s in select), default=0) if select else int(rule.default)
            unwanted = max((_specificity(s, rule) for s in ignore or ()), default=0)
            if wanted > unwanted and (rule.default or wanted == _OWN):
                chosen.append(rule)
        return chosen

    def matching(self, select: Sequence[str] | None = None) -> list[Rule]:
        """Rules that a selector matches, on by default or not; all rules without a selector. For lists and pages.

        Raises:
            UsageError: a selector matches no rule.
        """
        self._known(select or ())
        return [rule for rule in self.rules if not select or any(_specificity(s, rule) for s in select)]

    def _known(self, selectors: Sequence[str]) -> None:
        for selector in selectors:
            if not any(_specificity(selector, rule) for rule in self.rules):
                broken = "".join(f"; {warning}" for warning in self.warnings)
                meant = self._meant(selector)
                raise UsageError(f"no rule matches {selector!r}{meant}; 'onnxfix rules' lists them{broken}")


_OWN = 100
"""The specificity of a selector that names one rule."""


def _specificity(selector: str, rule: Rule) -> int:
    """0 if the selector does not match the rule; otherwise larger for a more specific selector."""
    text = selector.strip()
    if text.upper() == "ALL":
        return 1
    if text.lower() == rule.name or text.upper() == rule.code:
        return _OWN
    return len(text) + 1 if text and rule.code.startswith(text.upper()) else 0


def registry() -> Registry:
    """The rules of every rule pack that may be loaded (``packs``), each loaded once. A pack that fails is named in
    ``warnings``, not fatal.

    Raises:
        UsageError: a pack is requested that is not installed.
    """
    return _loaded(packs.setting())


@cache
def _loaded(setting: str) -> Registry:
    """The registry under a setting of ``packs``, which is that of this moment."""
    rules: dict[str, Rule] = {}
    warnings: list[str] = []
    broken = ""
    for pack in packs.installed():
        if not pack.loaded:
            continue
        value, name = pack.module, pack.name
        try:
            found = catalog.load(value) if value == BUILT_IN else None
            found = list(rules_of(value)) if found is None else found
        except Exception as error:  # whatever a third party's module raises at import
            warning = f"rule pack {name!r} ({value}) cannot be loaded: {type(error).__name__}: {error}"
            warnings.append(" ".join(warning.split()))
            broken = warnings[-1] if value == BUILT_IN else broken
            continue
        for rule in found:
            known = rules.setdefault(rule.code, rule)
            # A pack may list a rule of another pack, for which the catalog has another object.
            if known is not rule and (known.module, known.name) != (rule.module, rule.name):
                warnings.append(f"rule pack {name!r}: {rule.code} is taken by {known.module}")
    return Registry(
        tuple(rules[code] for code in sorted(rules)), tuple(" ".join(w.split()) for w in warnings), broken
    )


def forget() -> None:
    """Load everything again the next time, after a pack was installed."""
    _loaded.cache_clear()


def rules_of(entry: str) -> Iterable[Rule]:
    """The rules of an entry point's value: a module, a package (with all modules in it), or ``module:attribute``."""
    module_name, _, attribute = entry.partition(":")
    module = importlib.import_module(module_name)
    if attribute:
        target = getattr(module, attribute)
        yield from [target] if isinstance(target, Rule) else target
        return
    for part in _modules(module):
        for item in vars(part).values():
            if isinstance(item, Rule) and item.module == part.__name__:
                yield item


def _modules(module: ModuleType) -> Iterable[ModuleType]:
    yield module
    if hasattr(module, "__path__"):
        import pkgutil  # lazy: start-up

        for info in pkgutil.walk_packages(module.__path__, module.__name__ + "."):
            yield importlib.import_module(info.name)
