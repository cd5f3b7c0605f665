// Returns texts below WCAG's contrast of 4.5, controls without a name, and a page that scrolls sideways.
() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgb = (text) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (one) => { for (let at = one; at; at = at.parentElement) { const c = rgb(getComputedStyle(at).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255]; };
  const bad = [];
  for (const one of document.querySelectorAll('body *')) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || one.disabled || !one.checkVisibility()) continue;
    const style = getComputedStyle(one), text = light(rgb(one instanceof SVGElement ? style.fill : style.color)), back = light(ground(one));
    const ratio = (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05);
    if (ratio < 4.5) bad.push(`${one.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  for (const one of document.querySelectorAll('input, select, textarea, button, a[href], dialog')) {
    const name = one.getAttribute('aria-label') || one.labels?.length || one.textContent.trim();
    if (one.checkVisibility() && !name) bad.push(`no name: ${one.outerHTML.slice(0, 80)}`);
  }
  if (document.documentElement.scrollWidth > innerWidth) bad.push(`wider than the screen: ${document.documentElement.scrollWidth}`);
  return bad;
}
