"""The hub's REST API, as the lab's own commands use it.

Commands speak to the hub as the service `gpulab-cli`, whose token is a file that only the lab can read. They
never touch the hub's database.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote

from gpulab_hub.paths import LabPaths
from gpulab_hub.settings import Settings
from gpulab_spawner.errors import Refusal

SERVICE = "gpulab-cli"
SCOPES = ("delete:users", "read:users:name", "delete:servers", "list:groups", "read:groups")
READER_SCOPES = ("list:groups", "read:groups")
"""What the lab's service may ask of the hub."""
TIMEOUT_SECONDS = 60.0
_PAGES = "application/jupyterhub-pagination+json"
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HubDown(Exception):
    """The hub cannot be asked now; the message says why in a few words."""


class HubRefused(Refusal):
    """The hub declined."""

    code = "hub_refused"
    status = 409


@dataclass(frozen=True, slots=True)
class HubApi:
    """The hub's API.

    Attributes:
        url: Its address, ending in /hub/api.
        token: Token of the service, None while the lab has none.
    """

    url: str
    token: str | None

    def delete_user(self, name: str) -> bool:
        """Delete a hub user with their sessions, tokens and running servers; return whether there was one.

        Raises:
            HubDown: The hub cannot be asked.
            HubRefused: It declined, such as while a server is just stopping.
        """
        return self._ask("DELETE", f"users/{quote(name, safe='')}") is not None

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Return the groups of each hub user who is in any.

        Raises:
            HubDown: The hub cannot be asked.
            HubRefused: It declined.
        """
        found: dict[str, tuple[str, ...]] = {}
        offset: int | None = 0
        while offset is not None:
            answer = json.loads(self._ask("GET", f"groups?offset={offset}") or b'{"items": []}')
            for group in answer["items"]:
                for user in group["users"]:
                    found[user] = (*found.get(user, ()), group["name"])
            following = answer.get("_pagination", {}).get("next")
            offset = following["offset"] if following else None
        return found

    def _ask(self, method: str, path: str) -> bytes | None:
        """Return what the hub answers, None for "there is none"."""
        if self.token is None:
            raise HubDown("it was never started")
        request = urllib.request.Request(  # noqa: S310  # an http address from the settings
            f"{self.url}/{path}",
            method=method,
            headers={"Authorization": f"token {self.token}", "Accept": _PAGES},
        )
        try:
            with _NO_PROXY.open(request, timeout=TIMEOUT_SECONDS) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                _explain(error.code, error.read())
            return None
        except OSError as error:
            raise HubDown(str(getattr(error, "reason", error))) from error


def hub_api(paths: LabPaths, settings: Settings) -> HubApi:
    """Return the API of this lab's hub, reached through its proxy on this machine."""
    try:
        token = paths.admin_token.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        token = None
    everywhere = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104
    address = settings.listen.address
    host = everywhere.get(address) or (f"[{address}]" if ":" in address else address)
    return HubApi(f"http://{host}:{settings.listen.port}/hub/api", token)


def _explain(status: int, body: bytes) -> None:
    if status == HTTPStatus.NOT_FOUND:
        return
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        # The proxy answers so for a hub that does not.
        raise HubDown(f"it answers {status}")
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = f"status {status}"
    raise HubRefused(f"The hub declined: {message}", next_step="Run the command again in a minute.")
