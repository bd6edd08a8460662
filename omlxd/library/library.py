"""The models on disk, and which of them a name means."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike

import structlog

from omlxd.errors import (
    AmbiguousModel,
    InvalidRequest,
    ModelBroken,
    ModelNotFound,
    OmlxdError,
    Starting,
)
from omlxd.library import names
from omlxd.library.catalog import EMPTY, Catalog, CatalogModel
from omlxd.library.scan import scan_root
from omlxd.library.scanner import Scan, Scanner
from omlxd.model_settings.settings import ModelSettingsStore
from omlxd.printable import printable
from omlxd.timing import CallLater, loop_call_later

log = structlog.get_logger(__name__)

STILL_READING = "The model folders are being read; try again soon."

ConfigWarning = tuple[str, tuple[tuple[str, object], ...]]
"""A log event and its fields."""


class Library:
    """Lives on the event loop. Aliases and the default model come from ``settings``."""

    def __init__(
        self,
        roots: Sequence[str | PathLike[str]],
        settings: ModelSettingsStore,
        scan_limit: float,
        *,
        call_later: CallLater | None = None,
        scan: Scan = scan_root,
    ) -> None:
        """``scan_limit``: seconds after which a folder that is still being read is reported."""
        self.settings = settings
        self.catalog: Catalog = EMPTY
        self._scanner = Scanner(
            roots, scan_limit, call_later or loop_call_later, self.adopt, scan=scan
        )
        self._warnings: set[ConfigWarning] = set()
        self._followers: list[Callable[[Catalog], None]] = []

    # The folders

    @property
    def scanned(self) -> bool:
        """Every root was read once, or could not be read."""
        return self._scanner.first_scan_over

    def on_change(self, follow: Callable[[Catalog], None]) -> None:
        """Call ``follow`` with the catalog each time a root was read."""
        self._followers.append(follow)

    def start(self, every: float | None) -> None:
        """Read all roots now, and again each ``every`` seconds; None: only now."""
        self._scanner.scan_every(every)

    def stop(self) -> None:
        self._scanner.stop()
        self._followers.clear()

    async def rescan(self) -> Catalog:
        """Read all roots again; returns when each was read or has reached the time limit."""
        return await self._scanner.scan()

    def adopt(self, catalog: Catalog) -> None:
        """Use the ``catalog`` of a scan from now on."""
        self.catalog = catalog
        if self.scanned:
            found = set(config_warnings(catalog, self.settings))
            for event, fields in sorted(found - self._warnings, key=str):
                log.warning(event, **dict(fields))
            self._warnings = found
        for follow in self._followers:
            follow(catalog)

    # Names

    @property
    def ids(self) -> set[str]:
        """All models on disk, including broken ones."""
        return {*self.catalog.models, *self.catalog.broken}

    def resolve(self, name: str | None) -> CatalogModel:
        """The model that a request by ``name`` gets; the default model for None.

        A name is never used as a path. Raises ModelNotFound, AmbiguousModel, ModelBroken,
        InvalidRequest (there is no default), Starting (the first scan is not over).
        """
        wanted = name if name is not None else self._default(self.scanned)
        try:
            found = self._find(wanted)
        except ModelNotFound:
            if not self.scanned:
                raise Starting(STILL_READING) from None
            if name is None:
                raise ModelNotFound(wanted, by_default=True) from None
            raise
        if found in self.catalog.models:
            return self.catalog.models[found]
        broken = self.catalog.broken[found]
        what = "The default model" if name is None else "Model"
        raise ModelBroken(
            f"{what} '{found}' cannot be served: {broken.file} {broken.reason}.",
            file=broken.file,
            reason=broken.reason,
        )

    def settings_id(self, name: str) -> str:
        """The model whose settings ``name`` means; it may be broken, or no longer on disk.

        This is the model that a request by ``name`` gets, with one exception: a deleted model
        comes first if ``name`` matches it better than those on disk. Models that are only in the
        configuration file come last, because they may never have existed.
        Raises ModelNotFound, AmbiguousModel, Starting.
        """
        known, remembered = self.ids, self.settings.remembered
        order = (
            (known, names.EXACT),
            (remembered, names.EXACT),
            (known, names.CLOSE),
            (remembered, names.CLOSE),
            (known, names.DISTANT),
            (self.settings.ids, names.ALL),
        )
        for ids, rules in order if self.scanned else order[:3]:
            found = names.match(name, ids, self.settings.aliases(ids), rules)
            if found is not None:
                return found
        if not self.scanned:
            raise Starting(STILL_READING)
        return self._find(name)

    def default_id(self) -> str | None:
        """The model of requests without a model name, if it is on disk."""
        try:
            name = self._default(scanned=True)
            return names.match(name, self.ids, self.settings.aliases(self.ids))
        except OmlxdError:
            return None

    def context_length(self, model_id: str) -> int | None:
        """The effective one: the model's own, or less if the settings say so."""
        model = self.catalog.models.get(model_id)
        own = None if model is None else model.context_length
        return self.settings.of(model_id).context_within(own)

    def _find(self, name: str) -> str:
        return names.find(name, self.ids, self.settings.aliases(self.ids))

    def _default(self, scanned: bool) -> str:
        if self.settings.default is not None:
            return self.settings.default
        if not scanned:
            raise Starting(STILL_READING)
        if len(self.catalog.models) == 1:
            return next(iter(self.catalog.models))
        raise InvalidRequest(
            "Name a model: there is no default. GET /v1/models lists the models.", param="model"
        )


def config_warnings(catalog: Catalog, settings: ModelSettingsStore) -> Iterable[ConfigWarning]:
    """Settings that have no effect, or surely not the intended one.

    These are settings of a model that does not exist, a default model that does not exist, and
    aliases that mean several models or are the name of another model.
    """
    known = {*catalog.models, *catalog.broken}
    aliases = settings.aliases(sorted(known))
    for model_id in settings.configured - known:
        meant, _ = _meaning(model_id, known, {})
        yield "settings_of_no_model", (("model", printable(model_id)), ("meant", meant))
    for alias, models in aliases.items():
        if alias in known and models != (alias,):
            yield "alias_is_a_model", (("alias", alias), ("models", models))
        elif len(models) > 1:
            yield "alias_of_several_models", (("alias", alias), ("models", models))
    if settings.default is not None:
        found, reason = _meaning(settings.default, known, aliases)
        if found is None:
            default = printable(settings.default)
            yield "default_is_no_model", (("default", default), ("reason", reason))


def _meaning(
    name: str, known: set[str], aliases: Mapping[str, tuple[str, ...]]
) -> tuple[str | None, str]:
    """The model that a request by ``name`` gets, or None and the reason."""
    try:
        return names.find(name, known, aliases), ""
    except (AmbiguousModel, ModelNotFound) as error:
        return None, printable(error.message)
