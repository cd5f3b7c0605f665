"""One story per view of the console, in a real browser."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.flows.house import House

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = "<img src=x onerror=alert(1)> a red fox"


async def to(page: Any, view: str) -> None:
    await page.evaluate(f"location.hash = {view!r}")


async def test_generate_shows_steps_and_why_and_cancels(page: Any, served: House) -> None:
    await page.fill("textarea", HOSTILE)
    await page.fill("[name=num_inference_steps]", "10")
    await page.fill("[name=seed]", "18446744073709551615")
    await page.get_by_role("button", name="Generate").click()
    card = page.locator("article").first
    await card.get_by_text("Details").wait_for()
    assert HOSTILE in await card.inner_text()
    assert "Started from noise: all 10 steps ran." in await card.inner_text()
    assert await card.locator("svg.axis").get_attribute("aria-label") == "Step axis: starts after step 0 of 10, 10 run"
    await page.get_by_role("button", name="Generate").click()  # the same seed: the stored image is the answer
    await page.locator("article").nth(1).wait_for()
    await page.locator("article", has_text="exact").or_(page.locator("article", has_text="same request")).wait_for()
    asked, _ = await served.backends.catalog.jobs.list(limit=10)
    labels = {one.request.user for one in asked if one.request.prompt == HOSTILE}
    assert len(labels) == 1  # this browser is one user, whose edits start from its own images
    assert labels.pop().startswith("console-")
    await page.fill("[name=num_inference_steps]", "500")
    await page.fill("[name=seed]", "")
    await page.get_by_role("button", name="Generate").click()
    running = page.locator("article").first
    await running.get_by_text(re.compile(r"step \d+ of 500")).wait_for()
    await running.get_by_role("button", name="Cancel").click()
    await running.get_by_text(re.compile("Cancelled")).wait_for()
    await page.fill("[name=width]", "8")
    await page.evaluate("document.querySelector('form').noValidate = true")
    await page.fill("[name=height]", "63")
    await page.get_by_role("button", name="Generate").click()
    assert "size" in await page.get_by_role("alert").inner_text()


async def test_gallery_keeps_few_cells_of_many_jobs(page: Any, served: House) -> None:
    made = [await served.client.generate(f"a fox number {one}", steps=5, seed=one) for one in range(3)]
    rows = """async (id) => {
      const { jobs } = await import('/console/server.js');
      const one = jobs.get(id);
      for (let n = 0; n < 10000; n += 1) jobs.merge(
        { ...one, id: `0${String(n).padStart(25, '0')}`, prompt: `row ${n}` });
    }"""
    await to(page, "gallery")
    await page.locator(f".cell[data-id='{made[2].job.id}']").wait_for()
    await page.evaluate(rows, made[0].job.id)
    await page.fill("#search", "fox number")
    await page.locator(".cell").nth(2).wait_for()
    assert await page.locator(".cell").count() == 3
    await page.locator(".cell").first.focus()
    for pressed in ("c", "ArrowRight", "c"):
        await page.keyboard.press(pressed)
    await page.get_by_role("button", name="Compare two").click()
    slider = page.get_by_role("slider", name="Share of the first image")
    await slider.press("ArrowRight")
    assert await page.locator(".compare").evaluate("one => one.style.getPropertyValue('--at')") == "51%"
    await page.keyboard.press("Escape")
    await page.fill("#search", "")
    await page.locator(".window").evaluate("one => { one.scrollTop = one.scrollHeight / 2; }")
    await page.locator(".cell", has_text=re.compile(r"row \d+")).first.wait_for()
    assert await page.locator(".cell").count() < 120
    await page.fill("#search", "fox number 1")
    await page.locator(".cell").first.press("Enter")
    dialog = page.get_by_role("dialog")
    await dialog.get_by_text("A root").wait_for()
    assert "denoise" in await dialog.inner_text()


async def test_gallery_searches_by_similarity(page: Any, served: House) -> None:
    near = await served.client.generate("a blue fish under water", steps=5, seed=31)
    far = await served.client.generate("a red fox in the snow", steps=5, seed=32)
    await to(page, "gallery")
    await page.get_by_role("combobox", name="Search by").select_option("alike")
    refused = re.compile("/console/api/similar$")
    asked: list[str] = []
    page.on("request", lambda sent: asked.append(sent.url) if refused.search(sent.url) else None)
    await page.route(refused, lambda route: route.abort())
    await page.fill("#search", "a blue fish")
    await page.get_by_role("alert").filter(has_text="cannot be reached").wait_for()
    await served.client.generate("a fox that draws the list again", steps=5, seed=33)
    await page.wait_for_timeout(800)
    assert len(asked) == 1  # no job makes the page ask again
    await page.unroute(refused)
    await page.fill("#search", "a blue fish in the water")
    await page.get_by_role("status").filter(has_text="the most similar first").wait_for()
    shown = await page.locator(".cell").evaluate_all("cells => cells.map((one) => one.dataset.id)")
    assert shown.index(near.job.id) < shown.index(far.job.id)
    assert re.search(r"similarity 0\.\d{3}", await page.locator(f".cell[data-id='{near.job.id}']").inner_text())
    await to(page, f"gallery/{far.job.id}")
    await page.get_by_role("button", name="Similar ones").click()
    await page.locator(".cell").first.and_(page.locator(f"[data-id='{far.job.id}']")).wait_for()


async def test_a_dropped_file_starts_an_image(page: Any, served: House) -> None:
    drop = """async (png) => {
      const bytes = Uint8Array.from(png), carried = new DataTransfer();
      carried.items.add(new File([bytes], 'own.png', { type: 'image/png' }));
      const event = { dataTransfer: carried, bubbles: true, cancelable: true };
      for (const kind of ['dragover', 'drop'])
        document.querySelector('main').dispatchEvent(new DragEvent(kind, event));
    }"""
    await to(page, "gallery")
    await page.locator("h1", has_text="Gallery").wait_for()
    await page.evaluate(drop, list((await served.client.generate("a fox to take along", steps=5, seed=41)).png))
    await page.get_by_text("own.png").wait_for()
    assert await page.get_by_alt_text("The image to start from").evaluate("one => one.decode().then(() => true)")
    await page.fill("textarea", "a fox from a file")
    await page.fill("[name=num_inference_steps]", "10")
    await page.fill("[name=strength]", "0.5")
    await page.get_by_role("button", name="Generate").click()
    card = page.locator("article", has_text="a fox from a file").first
    await card.get_by_text("Started after step 5 of 10 from a given image").wait_for()
    await page.get_by_role("button", name="Leave out").click()
    assert await page.locator(".given").is_hidden()


async def test_jobs_cache_and_fleet_show_what_is_there(page: Any, served: House) -> None:
    await served.client.generate("a fox for the lists", steps=5, seed=5)
    await to(page, "jobs")
    await page.get_by_role("button", name="a fox for the lists").first.wait_for()
    assert "Nothing waits or runs." in await page.locator("main").inner_text()
    await to(page, "cache")
    await page.get_by_text("steps saved", exact=True).wait_for()
    assert "from noise" in await page.locator("main").inner_text()
    await to(page, "fleet")
    await page.get_by_text("Workers now").wait_for()
    assert "noop" in await page.locator("main").inner_text()


async def test_a_key_signs_in_and_sees_its_views(page: Any, key: str) -> None:
    await page.get_by_role("button", name="Sign in with a key").click()
    await page.fill("[name=key]", "aik_wrong")
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("alert").filter(has_text="key").wait_for()
    await page.fill("[name=key]", key)
    await page.keyboard.press("Enter")
    await page.get_by_text("alice of acme").wait_for()
    assert await page.locator("nav a").all_inner_texts() == ["Generate", "Gallery", "Jobs"]
    await to(page, "gallery")
    await page.get_by_text("No jobs yet.").wait_for()
    assert await page.evaluate("document.cookie") == ""
    await page.get_by_role("button", name="Sign out").click()
    await page.get_by_text("no key needed here").wait_for()


async def test_signing_out_ends_the_stream_of_events(page: Any, key: str) -> None:
    counted = """window.EventSource = class extends EventSource {
      constructor(...given) { super(...given); (window.streams ??= []).push(this); }
    }; null"""
    await page.evaluate(counted)
    await page.get_by_role("button", name="Sign in with a key").click()
    await page.fill("[name=key]", key)
    await page.keyboard.press("Enter")
    await page.get_by_text("alice of acme").wait_for()
    assert await page.evaluate("streams.map((one) => one.readyState < EventSource.CLOSED)") == [True]
    await page.route("**/console/api/session", lambda route: route.fulfill(json={"signed_in": False}))
    await page.get_by_role("button", name="Sign out").click()
    await page.get_by_role("heading", name="Sign in to Afterimage").wait_for()
    assert await page.evaluate("streams.map((one) => one.readyState < EventSource.CLOSED)") == [False]


async def test_an_opened_job_keeps_its_dialog_when_another_answers_late(page: Any, served: House) -> None:
    first = await served.client.generate("a fox whose answer is late", steps=5, seed=51)
    second = await served.client.generate("a fox that is looked at", steps=5, seed=52)
    held: list[Any] = []
    await page.route(f"**/console/api/jobs/{first.job.id}", lambda route: held.append(route))
    await to(page, f"gallery/{first.job.id}")
    await page.get_by_role("dialog").get_by_text("Loading").wait_for()
    await to(page, f"gallery/{second.job.id}")
    title = page.get_by_role("dialog").get_by_role("heading", level=1)
    await title.filter(has_text="looked at").wait_for()
    async with page.expect_response(re.compile(first.job.id)):
        await held[0].continue_()
    await page.wait_for_timeout(100)
    assert await title.inner_text() == "a fox that is looked at"


async def test_a_lost_connection_is_shown_and_mended(page: Any) -> None:
    await page.context.set_offline(True)
    await page.route("**/console/api/events", lambda route: route.abort())
    await page.evaluate("import('/console/server.js').then(({ connect }) => connect())")
    await page.get_by_text("Connection lost").wait_for()
    await page.context.set_offline(False)
    await page.unroute("**/console/api/events")
    await page.get_by_text("Connection lost").wait_for(state="hidden")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_views_are_accessible_at_each_width(page: Any, scheme: str) -> None:
    """WCAG A and AA by axe, and nothing wider than the screen."""
    axe = pytest.importorskip("axe_playwright_python.async_playwright").Axe()
    await page.emulate_media(color_scheme=scheme)
    for width in (1280, 360):
        await page.set_viewport_size({"width": width, "height": 780})
        for view in ("generate", "gallery", "jobs", "cache", "fleet"):
            await to(page, view)
            await page.locator(f"nav a[data-view={view}][aria-current=page]").wait_for()
            await page.locator("main", has_text=re.compile("Loading|Waiting for")).wait_for(state="hidden")
            found = await axe.run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]})
            assert not found.response["violations"], (view, width, found.generate_report())
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (view, width)
