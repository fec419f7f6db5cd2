"""A headless Chromium with one page of MiniWoB++, and the elements of the page."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shutil
import signal
import string
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from seeupo_gym.envs.packages import require
from seeupo_gym.envs.suites.text_suite import CrashError

# Seconds that the browser may take for an answer.
TIMEOUT = 60.0

# Length of the longest text of an element that commands about it repeat.
MAX_TITLE = 60

# Elements that keys can be typed into. A select chooses the option that begins with them.
_INPUTS = ("date", "email", "number", "password", "search", "tel", "text", "time")
_TYPABLE = {"select", "textarea", *(f"input_{kind}" for kind in _INPUTS)}

# jQuery UI gives ids to elements without one, in an order or from a time on that differ from run to run.
_MADE_UP_ID = re.compile(r"(ui-id-|dp)\d+|")

# Icons have no size until they are loaded, and would be missed. The time limit is the longest possible.
_START = """
return (async () => {
  const urls = Array.from(document.querySelectorAll('style')).flatMap(style =>
    Array.from(style.textContent.matchAll(/content: *url\\(['"]?(.*?)['"]?\\)/g), match => match[1]));
  window.loadedIcons = await Promise.all(Array.from(new Set(urls), async url => {
    const image = new Image();
    image.src = url;
    await image.decode();
    return image;
  }));
  core.EPISODE_MAX_TIME = 2147483647;
  if (window.jQuery) jQuery.fx.off = true;
  Math.seedrandom(BigInt(arguments[0]));
  core.setDataMode(arguments[1]);
  core.startEpisodeReal();
})();
"""

_CLICK = "if (!WOB_DONE_GLOBAL) core.elementClick(arguments[0]);"

# The page has then done what it does with a time-out of 0. Some tasks give the values to type beside the utterance.
_READ = """
return (async () => {
  await new Promise(resolve => setTimeout(resolve, 10));
  if (arguments[0]) core.endEpisode(-1, false, 'timed out');
  const said = core.getUtterance(), is_text = typeof said === 'string';
  return {utterance: is_text ? said : said.utterance, fields: is_text ? null : said.fields,
          done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL, dom: core.getDOMInfo()};
})();
"""

# A watchdog program. It waits for the end of the process that holds the other end of its input, and then ends what that
# process could not: the process group of the driver, whose number it was sent, and the folder.
_WATCH = """
read -r driver
read -r _
kill -9 "-$driver"
rm -rf -- "$0" || { sleep 1; rm -rf -- "$0"; }
"""


class Element(NamedTuple):
    """A part of the page: a leaf of its tree of elements, or text beside elements (``ref`` 0)."""

    ref: int
    name: str
    text: str
    state: str = ""
    typable: bool = False

    @property
    def title(self) -> str:
        """A short description, which does not depend on the element's state."""
        return f"[{self.ref}] {self.name}" + (f" {quote(self.text[:MAX_TITLE])}" if self.text else "")

    def __str__(self) -> str:
        if not self.ref:
            return quote(self.text)
        return f"[{self.ref}] {self.name}" + (f" {quote(self.text)}" if self.text else "") + self.state


def printable(text: str) -> str:
    """Escape all but printable ASCII characters of a text, as JSON does."""
    return "".join(sign if sign in string.printable else _escape(sign) for sign in text)


def _escape(sign: str) -> str:
    return json.dumps(sign)[1:-1] if ord(sign) > 127 else f"\\u{ord(sign):04x}"


def quote(text: str) -> str:
    """Write a text as a JSON string, in printable ASCII."""
    return printable(json.dumps(text, ensure_ascii=False))


def read_elements(node: dict[str, Any], label: str = "") -> Iterator[Element]:
    """
    List the leaves of a page, which the suite's own agents may click, and its other texts.

    :param node: an element in the form of the suite's ``core.getDOMInfo()``
    :param label: text beside the element, for an element without text of its own
    """
    children = node["children"]
    inner = [child for child in children if child["tag"] != "t"]
    if not inner:
        yield _leaf(node, " ".join(child["text"] for child in children), label)
        return
    texts = [child["text"] for child in children if child["tag"] == "t"]
    # Most often a box to tick and its label.
    labelled = len(inner) == 1 and not inner[0]["children"] and not inner[0].get("text")
    for child in children:
        if child["tag"] != "t":
            yield from read_elements(child, " ".join(texts) if labelled else "")
        elif not labelled:
            yield Element(0, "", child["text"])


def _leaf(node: dict[str, Any], inner_text: str, label: str) -> Element:
    tag = node["tag"].lower()
    typable = tag in _TYPABLE
    # The classes of SVG elements are objects. The text of an element to type into is its value at the start.
    classes = node["classes"] if isinstance(node["classes"], str) else ""
    text = label if typable else node.get("text") or inner_text or label
    identity = "" if _MADE_UP_ID.fullmatch(node["id"]) else f"#{node['id']}"
    name = printable(tag + identity + "".join(f".{part}" for part in classes.split()))
    if not text and not typable and not node["bgColor"].startswith("rgba"):
        name += f" {node['bgColor']}"  # an empty box shows nothing but its colour
    value = node.get("value")
    state = f" value={quote(value)}" if isinstance(value, str) else " checked" if value else ""
    return Element(node["ref"], name, text, state, typable)


def html_folder() -> Path:
    """
    Find the folder of the suite's pages.

    :raises ImportError: if the package is missing
    """
    return Path(require("miniwob.selenium_instance", "MiniWoB-v0 needs a package: pip install miniwob==1.1.0").HTML_DIR)


def find_programs() -> tuple[str, str]:
    """
    Find the browser and its driver: where the suite's own variables say, or on the PATH.

    :raises ImportError: if one is missing
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = os.getenv("MINIWOB_CHROME_BINARY") or next(filter(None, map(shutil.which, names)), None)
    driver = os.getenv("MINIWOB_CHROMEDRIVER") or shutil.which("chromedriver")
    if browser is None or driver is None:
        raise ImportError(
            "MiniWoB-v0 needs Chromium and ChromeDriver on the PATH: on Debian, "
            "apt-get install chromium chromium-driver"
        )
    return browser, driver


def _stop(owner: int, watch: subprocess.Popen[bytes], process: subprocess.Popen[bytes] | None, folder: str) -> None:
    """End a driver and its browser, whatever state they are in, and remove the folder with all that they wrote."""
    if os.getpid() != owner:
        return  # this is a fork of the process that owns the browser
    if process is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)
    watch.kill()
    watch.communicate()


class Browser:
    """
    A headless Chromium. It ends with :meth:`stop`, with this object, or with Python, however that ends.

    :raises ImportError: if the package or a program is missing
    :raises RuntimeError: if the browser does not start
    """

    def __init__(self) -> None:
        self._html = html_folder()
        browser, driver = find_programs()
        webdriver = importlib.import_module("selenium.webdriver")
        exceptions = importlib.import_module("selenium.common.exceptions")
        self._js_error = exceptions.JavascriptException
        self._errors = (exceptions.WebDriverException, importlib.import_module("urllib3.exceptions").HTTPError, OSError)
        self._type_text = importlib.import_module("miniwob.selenium_actions").execute_type_text
        folder = tempfile.mkdtemp(prefix="miniwob-")
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        options.unhandled_prompt_behavior = "dismiss"
        for argument in (
            "--headless",
            "--no-sandbox",  # needed for root, and safe: only the suite's own pages are opened
            "--host-resolver-rules=MAP * ~NOTFOUND",  # and they cannot reach other hosts
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--lang=en-US",
            f"--user-data-dir={folder}/profile",
        ):
            options.add_argument(argument)
        # Like the next process in a session of its own, so that no signal to this process's group reaches it.
        watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert watch.stdin is not None
        # All processes of the browser are in this session, and end together.
        service = webdriver.ChromeService(
            executable_path=driver, env={**os.environ, "TMPDIR": folder}, popen_kw={"start_new_session": True}
        )
        try:
            service.start()
            watch.stdin.write(b"%d\n" % service.process.pid)
            watch.stdin.flush()
            # Not webdriver.Chrome, which would speak to the driver on this machine through the user's proxy.
            direct = importlib.import_module("selenium.webdriver.common.proxy").Proxy({"proxyType": "DIRECT"})
            config = importlib.import_module("selenium.webdriver.remote.client_config").ClientConfig(
                service.service_url, proxy=direct, timeout=TIMEOUT
            )
            self._driver = webdriver.Remote(service.service_url, options=options, client_config=config)
            self._driver.set_page_load_timeout(TIMEOUT)
            self._driver.set_script_timeout(TIMEOUT)
        except BaseException as error:
            _stop(os.getpid(), watch, getattr(service, "process", None), folder)
            if not isinstance(error, self._errors):
                raise
            raise RuntimeError(f"the browser of MiniWoB++ did not start: {_first_line(error)}") from error
        self._service = service  # kept alive, because its finaliser would stop the driver
        self.pid: int = service.process.pid
        self.stop = weakref.finalize(self, _stop, os.getpid(), watch, service.process, folder)

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except self._js_error:
            raise  # an error of the page: the browser is well
        except self._errors as error:
            raise CrashError(f"the browser of MiniWoB++ died or hangs ({_first_line(error)})") from error

    def begin(self, task: str, seed: int, data_mode: str) -> dict[str, Any]:
        """
        Load the page anew, as some pages keep things from one episode to the next, and start an episode.

        :raises CrashError: if the browser is dead or hangs
        """
        self._call(self._driver.get, f"{(self._html / 'miniwob' / task).as_uri()}.html")
        self._call(self._driver.execute_script, _START, str(seed), data_mode)
        return self.read()

    def act(self, ref: int, text: str | None) -> None:
        """
        Click an element as the suite does it, and type text into it.

        :param ref: number of the element
        :param text: text to type; None: only click
        :raises CrashError: if the browser is dead or hangs
        """
        self._call(self._driver.execute_script, _CLICK, ref)
        if text is not None:
            self._call(self._type_text, text, self._driver)

    def read(self, time_is_up: bool = False) -> dict[str, Any]:
        """
        Read the page.

        :param time_is_up: whether to end an episode that is still running, as the suite does when its time is up
        :return: ``utterance``, ``fields``, ``done``, ``reward`` and ``dom``
        :raises CrashError: if the browser is dead or hangs
        """
        page: dict[str, Any] = self._call(self._driver.execute_script, _READ, time_is_up)
        return page


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
