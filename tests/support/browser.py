"""Chromium without a window, spoken to over a pipe with the standard library alone."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
TEXT = """
(() => {
  const texts = [];
  const visit = (node) => {
    if (node.nodeType === Node.TEXT_NODE) texts.push(node.textContent);
    if (["STYLE", "SCRIPT", "TEMPLATE"].includes(node.nodeName)) return;
    if (node.shadowRoot) visit(node.shadowRoot);
    if (node.contentDocument && node.contentDocument.body) visit(node.contentDocument.body);
    node.childNodes.forEach(visit);
  };
  visit(document.body);
  return texts.join(" ").replace(/\\s+/g, " ");
})()
"""
"""All text of a page, also that of frames and of custom elements, which `innerText` does not see."""

AS_3_AND_4 = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The ends of the pipes must have these numbers in the browser; here they are whatever is free."""


def find_browser() -> str | None:
    """Return the path of a Chromium on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """A page, with all that was said on its console, and all requests that failed."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._write, self._read = to_browser, from_browser
        self._pending, self._messages, self._session = b"", 0, None
        self.said: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return what Chromium answers to a command of the DevTools protocol."""
        self._messages += 1
        message = {"id": self._messages, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        for answer in self._incoming(60.0):
            if answer.get("id") == message["id"]:
                return answer["result"]
        raise TimeoutError(f"Chromium does not answer {method}.")

    def wait(self, seconds: float) -> None:
        """Let the page work."""
        for _ in self._incoming(seconds):
            pass

    def open(self, url: str) -> None:
        """Go to an address; what an earlier page said is forgotten."""
        self.ask("Page.navigate", url="about:blank")
        self.said = []
        self.ask("Page.navigate", url=url)

    def text_with(self, *expected: str, seconds: float = 60.0) -> str:
        """Return the text of the page once all that is expected is in it, or after the time."""
        end = time.monotonic() + seconds
        while True:
            text = str(self.ask("Runtime.evaluate", expression=TEXT, returnByValue=True)["result"].get("value"))
            if all(each in text for each in expected) or time.monotonic() > end:
                return text
            self.wait(0.5)

    def _incoming(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Yield messages as they come; note what the console says and what fails."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            while b"\0" in self._pending:
                line, _, self._pending = self._pending.partition(b"\0")
                message = json.loads(line)
                self._note(message.get("method", ""), message.get("params", {}))
                yield message
            if select.select([self._read], [], [], min(left, 0.2))[0]:
                self._pending += os.read(self._read, 1 << 20)

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
            texts = (str(each.get("value", each.get("description", ""))) for each in parameters["args"])
            self.said.append(f"{parameters['type']}: {' '.join(texts)}")
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.said.append(f"exception: {details.get('exception', {}).get('description', details['text'])}")
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.said.append(f"error: {parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif method == "Network.responseReceived" and parameters["response"]["status"] >= 400:
            self.said.append(f"error: {parameters['response']['status']} {parameters['response']['url']}")
        elif method == "Network.loadingFailed" and not parameters.get("canceled"):
            self.said.append(f"error: {parameters['errorText']}")


@contextmanager
def open_page(browser: str, profile: Path) -> Iterator[Page]:
    """Start Chromium, with a folder of its own, and give a page of it."""
    (child_read, write), (read, child_write) = os.pipe(), os.pipe()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    options += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--enable-unsafe-swiftshader"]
    command = [sys.executable, "-c", AS_3_AND_4, str(child_read), str(child_write), browser, *options]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, pass_fds=(child_read, child_write), **quiet)
    os.close(child_read)
    os.close(child_write)
    try:
        yield Page(write, read)
    finally:
        process.terminate()
        process.wait(20)
        os.close(write)
        os.close(read)
