"""A headless Chromium for tests of pages: opens a file at a width, light or dark, and answers questions about it."""
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find():
    """Returns the path of a browser, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """Speaks the DevTools protocol over a pair of pipes: JSON messages that end with a zero byte."""

    def __init__(self, program, timeout=60):
        self.timeout = timeout
        self.profile = tempfile.TemporaryDirectory(prefix="palimpsest-browser-", ignore_cleanup_errors=True)
        theirs_in, self.out = os.pipe()
        self.incoming, theirs_out = os.pipe()

        def connect():  # the protocol's file descriptors are 3 and 4
            a, b = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(a, 3)
            os.dup2(b, 4)

        command = [program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}",
                   "--no-sandbox",  # a container's root has no other way; the pages are our own
                   "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
                   "--disable-background-networking", "--disable-component-update", "about:blank"]
        self.process = subprocess.Popen(command, preexec_fn=connect, close_fds=False, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.buffer, self.number, self.events = b"", 0, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.incoming)
        self.profile.cleanup()

    def message(self, until):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.incoming], [], [], max(0, until - time.monotonic()))
            data = os.read(self.incoming, 1 << 16) if ready else b""
            if not data:
                raise TimeoutError(f"the browser does not answer (exit code {self.process.poll()})")
            self.buffer += data
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if hasattr(self, "session"):
            request["sessionId"] = self.session
        os.write(self.out, json.dumps(request).encode() + b"\0")
        until = time.monotonic() + self.timeout
        while True:
            message = self.message(until)
            if message.get("id") == self.number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            if "method" in message:
                self.events.append(message)

    def open(self, path, width=1600, dark=False):
        """Opens a page and waits until it is complete."""
        self.events = []
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri())
        until = time.monotonic() + self.timeout
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message(until))

    def ask(self, expression):
        """Returns the value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def complaints(self):
        """Returns what the console of the page says: errors, warnings, exceptions."""
        self.ask("1")  # what came before has arrived
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [event["params"] for event in self.events if event["method"] in kinds]

    def requests(self):
        """Returns the addresses that the page asked for."""
        self.ask("1")
        return [event["params"]["request"]["url"] for event in self.events
                if event["method"] == "Network.requestWillBeSent"]

    def screenshot(self, path):
        """Writes a picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        image = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        pathlib.Path(path).write_bytes(base64.b64decode(image["data"]))
