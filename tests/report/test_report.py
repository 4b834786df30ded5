"""The report page: complete, escaped, self-contained, and usable in a browser at two widths."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lengthwise.report import WORST, load_runs, report
from lengthwise.report_cli import report as report_command
from lengthwise.spent import PHASES, spent
from serving.folder import FolderError, RecordExists
from serving.record import Record, RecordError
from tests.report.toy import toy

EVIL = '<script>document.title="stolen"</script>&"\''


def evil(seed: int, policy: str = EVIL) -> Record:
    """A run in which every text that a user or a file may set tries to be markup."""
    record = toy(seed, requests=25, trouble=0.3).record
    requests = record.requests.copy()
    refused = (requests["status"] == "refused").to_numpy()
    reasons = np.where(refused, f"too long {EVIL}", None)
    requests["reason"] = pd.Series(reasons.tolist(), dtype=object)
    config = {**record.config, "policy": policy, EVIL: EVIL, "run": {"trace": EVIL, "seed": seed}}
    return Record(config, requests, record.steps, record.events, (f"note {EVIL}",))


@pytest.fixture(scope="module")
def html() -> str:
    return report({EVIL: evil(1), "other": evil(2, "other")})


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_what_comes_from_users_stays_text(html: str) -> None:
    page = Page(html)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "<script>document" not in html
    for said in (f"note {EVIL}", f"too long {EVIL}", EVIL):
        assert said in page.text


def test_nothing_is_fetched(html: str) -> None:
    page = Page(html)
    sources = [a.get("src") or a.get("href") for _, a in page.tags if "src" in a or "href" in a]
    assert sources
    assert all(str(s).startswith("data:image/svg+xml;base64,") for s in sources)
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert str(policy).startswith("default-src 'none'")
    for source in sources:
        svg = base64.b64decode(str(source).partition(",")[2]).decode()
        assert svg.startswith("<?xml")
        assert "<script" not in svg
    # the picture of every plot, with words for those who cannot see it
    images = [a for t, a in page.tags if t == "img"]
    assert len(images) == 3 + 2 * 3
    assert all(a.get("alt") for a in images)


def test_figures_are_there_and_the_best_is_marked(html: str) -> None:
    table = re.search(r'<table id="figures">.*?</table>', html, re.S)
    assert table
    rows = dict(re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', table[0]))
    assert "Padding ratio" in rows
    assert "Prefix cache hits" not in rows  # neither run has one
    throughput = [evil(i).summary["output_throughput"] for i in (1, 2)]
    cells = re.findall(r"<td( class=\"best\")?>([^<]*)</td>", rows["Output tokens/s"])
    assert [bool(best) for best, _ in cells] == [x == max(throughput) for x in throughput]


def test_settings_that_differ_stand_side_by_side(html: str) -> None:
    page = Page(html[html.index("<h2>Settings") :])
    assert re.search(r"run\.seed\s*1\s*2", page.text)
    differ, _, same = page.text.partition("The same in all runs")
    assert "run.seed" not in same
    assert "run.trace" in same
    assert "run.trace" not in differ


def test_one_run_alone(tmp_path: Path) -> None:
    page = report({"only": toy(3).record})
    assert "★ marks" not in page
    assert "All settings" in page
    empty = toy(3).record
    nothing = Record({}, empty.requests[:0], empty.steps[:0], empty.events[:0])
    assert "<h1>" in report({"empty": nothing})


@pytest.mark.parametrize("seed", range(8))
def test_time_spent_adds_up(seed: int) -> None:
    run = toy(seed, requests=25, replicas=1 + seed % 2, trouble=0.4)
    record = run.record
    finished = record.requests[record.requests["status"] == "finished"]
    where = spent(record, finished["request"].tolist())
    total = where[[f"{phase}_s" for phase in PHASES]].sum(axis=1)
    assert total.to_numpy() == pytest.approx(finished["e2e_s"].to_numpy())
    assert where["queued_s"].to_numpy() == pytest.approx(finished["queue_s"].to_numpy())
    often = finished["preemptions"].to_numpy()
    assert (where["preempted_s"].to_numpy()[often == 0] == 0).all()
    once = [x for x in run.lives if x.status == "finished" and not x.preemptions and x.tokens]
    decode = dict(zip(where["request"], where["decode_s"], strict=True))
    for life in once:
        assert decode[life.index] == pytest.approx(life.tokens[-1] - life.tokens[0])


def test_time_spent_by_requests_that_never_ran() -> None:
    record = toy(1).record
    refused = record.requests.loc[record.requests["status"] == "refused", "request"].tolist()
    assert spent(record, refused)[[f"{p}_s" for p in PHASES]].to_numpy().sum() == 0


def test_runs_are_found_and_named(tmp_path: Path) -> None:
    for name in ("b", "a"):
        toy(1, config={"policy": name}).record.save(tmp_path / "both" / name)
    (tmp_path / "both" / "summary.json").write_text(json.dumps({"policies": {"b": 1, "a": 2}}))
    toy(2, config={"policy": "a"}).record.save(tmp_path / "again")
    found = load_runs([tmp_path / "both", tmp_path / "again", tmp_path / "again"])
    assert list(found) == ["b", "a", "a (again)", "a (again) 2"]
    (tmp_path / "both" / "summary.json").unlink()
    assert list(load_runs([tmp_path / "both"])) == ["a", "b"]
    with pytest.raises(RecordError, match="neither a record nor a folder of records"):
        load_runs([tmp_path / "nothing"])


def test_command_writes_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy(1).record.save(tmp_path / "run")
    out = tmp_path / "deep" / "report.html"
    report_command([tmp_path / "run"], out)
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert str(out) in capsys.readouterr().out
    with pytest.raises(RecordExists, match="exists already"):
        report_command([tmp_path / "run"], out)
    report_command([tmp_path / "run"], out, force=True)
    with pytest.raises(FolderError, match="cannot write"):
        report_command([tmp_path / "run"], Path("/dev/null/report.html"))
    assert [p.name for p in out.parent.iterdir()] == ["report.html"]


# In a browser

PROBE = """
<script>
const errors = [];
addEventListener("error", (e) => errors.push(String(e.message)));
addEventListener("securitypolicyviolation", (e) => errors.push("blocked " + e.blockedURI));
addEventListener("load", () => {
  const table = document.querySelector("#worst");
  const column = (i) => [...table.tBodies[0].rows].map((r) => r.cells[i].dataset.value);
  const heads = [...table.tHead.rows[0].cells];
  const sorted = {};
  heads.forEach((head, i) => {
    const button = head.querySelector("button");
    if (!button) return;
    const key = button.textContent;
    button.click();
    sorted[key] = [head.getAttribute("aria-sort"), column(i)];
    button.click();
    sorted[key].push(head.getAttribute("aria-sort"), column(i));
  });
  for (const details of document.querySelectorAll("details")) details.open = true;
  const broken = [...document.images].filter((i) => !i.naturalWidth).length;
  const wide = [...document.querySelectorAll("body *")].filter((e) =>
    !e.closest(".scroll") && e.getBoundingClientRect().right > innerWidth + 0.5);
  const result = {
    title: document.title, width: innerWidth, scroll: document.documentElement.scrollWidth,
    wide: wide.map((e) => e.tagName + " " + e.textContent.slice(0, 40)), broken, errors, sorted,
    inside: [...document.querySelectorAll(".scroll")].map((e) => e.scrollWidth - e.clientWidth),
  };
  const out = document.createElement("pre");
  out.id = "result";
  out.textContent = JSON.stringify(result);
  document.body.append(out);
});
</script>
"""


# A window cannot be as narrow as a phone, but a frame in it can.
FRAME = """<!doctype html><iframe style="border:0;width:%dpx;height:900px"></iframe><script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {
  document.body.append(frame.contentDocument.querySelector("#result").cloneNode(true));
});
frame.srcdoc = %s;
</script>"""


def in_chromium(html: str, width: int, folder: Path) -> dict[str, Any]:
    """What the probe in a page says at a width, and what Chromium wrote to its console."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("chromium is not installed: the report page was not opened in a browser")
    page = folder / "frame.html"
    probed = html.replace("<style>", PROBE + "<style>", 1)
    page.write_text(FRAME % (width, json.dumps(probed).replace("</", "<\\/")), encoding="utf-8")
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *("--virtual-time-budget=5000", "--window-size=1400,1000", "--dump-dom"),
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    said = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.S)
    assert said, done.stderr
    result: dict[str, Any] = json.loads(Page(said[0]).text)
    result["console"] = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return result


@pytest.mark.parametrize("width", [1280, 400])
def test_in_a_browser(html: str, width: int, tmp_path: Path) -> None:
    seen = in_chromium(html, width, tmp_path)
    assert seen["width"] == width
    assert seen["console"] == seen["errors"] == seen["wide"] == []
    assert seen["broken"] == 0
    assert seen["scroll"] <= width  # nothing makes the page scroll sideways
    if width == 1280:
        assert set(seen["inside"]) == {0}
    assert str(seen["title"]).startswith("Report: <script>")
    sorts = seen["sorted"]
    assert isinstance(sorts, dict)
    assert {"Run", "E2E (s)", "TTFT (s)"} <= set(sorts)
    for name, (down, falling, up, rising) in sorts.items():
        assert (down, up) in (("descending", "ascending"), ("ascending", "descending"))
        if down == "ascending":  # the column by which the page was sorted already
            falling, rising = rising, falling
        if name == "Run":
            assert falling == sorted(falling, reverse=True, key=str.casefold)
            continue
        numbers = [float(x) for x in falling if x != ""]
        assert numbers == sorted(numbers, reverse=True)
        assert falling[len(numbers) :] == [""] * (len(falling) - len(numbers))
        assert [float(x) for x in rising if x != ""] == sorted(numbers)
    assert 2 * WORST <= len(sorts["E2E (s)"][1]) <= 4 * WORST
