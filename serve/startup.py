"""Start-up checks, once for `torsor serve` and for BentoML, which starts the service by itself."""

from pathlib import Path

from serve.gateway.keys import Key, read_keys
from serve.gateway.tls import check_tls
from serve.queries.saved_state import read_key
from serve.settings import Settings
from serve.sweeps.folder import check_data_folder


def check_settings(settings: Settings) -> tuple[Key, ...]:
    """The API keys, once all files that the settings name are found to be usable.

    Raises `ValueError` in one line for the first that isn't. Bundles are for the caller to look at.
    """
    if not settings.folders:
        raise ValueError("bundles: found none to serve, expected some; export one first")
    read_key(settings.state_key)
    keys = tuple(read_keys(Path(settings.keys))) if settings.keys else ()
    if settings.tls_cert:
        check_tls(settings.tls_cert, settings.tls_key)
    check_data_folder(settings.data_folder)
    if settings.bundles_root and not Path(settings.bundles_root).is_dir():
        found = f"found {settings.bundles_root}, expected a folder that is there"
        raise ValueError(f"bundles_root: {found}; make it, or name another one")
    return keys
