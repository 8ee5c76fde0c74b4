"""A headless Chromium that loads one page and says what it looks like: by its debugging pipe, with nothing else."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_LAUNCH = (
    "import fcntl, os, sys; r, w = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3]); "
    "os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def find_chromium() -> str | None:
    """The program, if there is one."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Browser:
    """A page of so many pixels; `console` has what it wrote and what it could not load."""

    def __init__(self, program: str, url: str, *, width: int, height: int = 800, dark: bool = False) -> None:
        self.console: list[str] = []
        self._number = 0
        self._pending: dict[int, Any] = {}
        self._data = b""
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable, "-c", _LAUNCH, str(there), str(back), program, "--headless", "--no-sandbox",
                "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
                "--no-first-run", f"--user-data-dir={self._profile.name}", "about:blank",
            ],
            pass_fds=(there, back),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(there)
        os.close(back)
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True)
        scheme = "dark" if dark else "light"
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._loaded = False
        self.requests: list[str] = []
        self.ask("Page.navigate", url=url)
        deadline = time.monotonic() + 30
        while not self._loaded:
            self._receive(deadline)

    def evaluate(self, expression: str) -> Any:
        """The value of some JavaScript in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """All of the page as a picture."""
        picture = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def ask(self, method: str, **parameters: Any) -> Any:
        """One command to the page, and its answer."""
        return self._ask(method, session=self._session, **parameters)

    def _ask(self, method: str, *, session: str | None = None, **parameters: Any) -> Any:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 30
        while number not in self._pending:
            self._receive(deadline)
        answer = self._pending.pop(number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _receive(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        ready, _, _ = select.select([self._read], [], [], max(0.0, left))
        if not ready:
            raise TimeoutError("Chromium does not answer")
        data = os.read(self._read, 2**20)
        if not data:
            raise EOFError("Chromium has ended")
        *messages, self._data = (self._data + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._pending[message["id"]] = message
            else:
                self._event(message["method"], message["params"])

    def _event(self, method: str, parameters: Any) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.consoleAPICalled":
            self.console.append(str(parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.console.append(str(parameters["entry"]["text"]))

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        self._profile.cleanup()
