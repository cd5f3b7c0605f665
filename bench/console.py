"""How fast the console is, in a real browser on the server's own cores: first paint, a gallery of many jobs, delay.

    python -m bench.console

Needs Playwright (in `make dev`) and Chromium. The jobs are real ones of a no-op model. The gallery is scrolled to its
end, which reads every page of jobs; a long task holds the page's thread for more than 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import time
from typing import Any

from bench.http_costs import served
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, settings_of, table
from shared.client import AsyncClient
from shared.runtime.loop import run
from shared.runtime.telemetry import configure_logging

PAINT_GOAL_S, BEHIND_GOAL_S, AT_ONCE = 1.0, 1.0, 16
PAINT = """() => new Promise((done) => {
  const look = () => {
    const [paint] = performance.getEntriesByName('first-contentful-paint');
    paint ? done(paint.startTime / 1000) : setTimeout(look, 10);
  };
  look();
})"""
WATCH = """() => {
  window.long = [];
  new PerformanceObserver((list) => window.long.push(...list.getEntries().map((one) => one.duration / 1000)))
    .observe({ type: 'longtask' });
}"""
SCROLL = """async () => {
  const { jobs } = await import('/console/server.js'), view = document.querySelector('.window');
  let most = 0;
  const step = () => new Promise((done) => requestAnimationFrame(done));
  for (let top = 0; !jobs.complete || top < view.scrollHeight; top += view.clientHeight / 2) {
    view.scrollTop = top;
    await step();
    most = Math.max(most, view.querySelectorAll('*').length);
    if (top < view.scrollHeight) continue;
    top = view.scrollHeight - 2 * view.clientHeight; // the end so far: wait for the next page of jobs
    await new Promise((done) => setTimeout(done, 50));
  }
  return [jobs.all().length, most];
}"""
SEEN = """(id) => new Promise((done) => {
  const shown = () => document.querySelector(`.cell[data-id='${id}'] img`);
  const look = () => shown() ? done(Date.now() / 1000) : requestAnimationFrame(look);
  look();
})"""


async def measure(asked: argparse.Namespace) -> None:
    from playwright.async_api import async_playwright

    on, browser = machine(), shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("no Chromium: apt-get install chromium")
    async with served("noop:") as (process, client, _), async_playwright() as driver:
        chromium = await driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        address = f"{process.http_address}/console/"
        paints = [await first_paint(chromium, address) for _ in range(asked.loads)]
        await fill(client, asked.jobs)
        page = await chromium.new_page(viewport={"width": 1280, "height": 800})
        await page.goto(f"{address}#gallery")
        await page.wait_for_selector(".cell")
        await page.evaluate(WATCH)
        listed, nodes = await page.evaluate(SCROLL)
        long = await page.evaluate("window.long")
        await page.evaluate("document.querySelector('.window').scrollTop = 0")
        behind = [await delay(client, page, number) for number in range(asked.delays)]
        await chromium.close()
    figures: dict[str, dict[str, Any]] = {
        "first_paint": {"p50_s": quantile(paints, 0.5), "largest_s": max(paints), "goal_s": PAINT_GOAL_S},
        "gallery": {
            "jobs": listed,
            "most_elements": nodes,
            "long_tasks": len(long),
            "longest_task_s": max([0.0, *long]),
        },
        "behind": {"p50_s": quantile(behind, 0.5), "largest_s": max(behind), "goal_s": BEHIND_GOAL_S},
    }
    figures["first_paint"]["met"] = figures["first_paint"]["p50_s"] <= PAINT_GOAL_S
    figures["gallery"]["met"] = listed >= asked.jobs and not long
    figures["behind"]["met"] = figures["behind"]["largest_s"] <= BEHIND_GOAL_S
    rows = [(name, key, str(value)) for name, of in figures.items() for key, value in of.items()]
    print(table(("figure", "", "value"), rows))
    record("console", figures, settings_of(asked), on=on, folder=asked.out)


async def first_paint(chromium: Any, address: str) -> float:
    """Return the seconds to the first contentful paint with an empty cache of the browser."""
    context = await chromium.new_context()
    page = await context.new_page()
    await page.goto(address)
    seconds = await page.evaluate(PAINT)
    await context.close()
    return float(seconds)


async def fill(client: AsyncClient, count: int) -> None:
    """Generate so many images."""
    left = iter(range(count))

    async def one() -> None:
        for seed in left:
            await client.generate(f"a red fox number {seed}", seed=seed, steps=1, cache="off")

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))


async def delay(client: AsyncClient, page: Any, number: int) -> float:
    """Return the seconds from an image's arrival at its client to its cell in the gallery."""
    made = await client.generate(f"a blue fish number {number}", seed=number, steps=5, cache="off")
    arrived = time.time()
    return max(float(await page.evaluate(SEEN, made.job.id)) - arrived, 0.0)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--loads", type=int, default=20, help="loads of the page")
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs in the gallery")
    parser.add_argument("--delays", type=int, default=40, help="images whose delay is measured")
    asked = parser.parse_args()
    quiet()
    configure_logging("error")
    run(measure(asked))


if __name__ == "__main__":
    main()
