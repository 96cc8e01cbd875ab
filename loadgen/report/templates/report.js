// Draws the pictures that figure.py describes. uPlot gives canvas, axes, cursor and zoom; the data decide the rest.
(() => {
  "use strict";
  const pictures = JSON.parse(document.getElementById("pictures").textContent);
  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", "DejaVu Sans", sans-serif';
  const ratio = () => uPlot.pxRatio;

  // --- numbers as people read them
  const short = (v) => String(+v.toPrecision(3));
  const time = (v) =>
    v >= 600 && v % 60 === 0 ? v / 60 + " min" : v >= 1 || v === 0 ? short(v) + " s" : v >= 1e-3 ? short(v * 1e3) + " ms" : short(v * 1e6) + " µs";
  const count = (v) => (v >= 1e6 ? short(v / 1e6) + " M" : v >= 1e3 ? short(v / 1e3) + " k" : short(v));
  const share = (v) => short(v * 100) + " %";
  const hours = (v) => short(v) + " h";
  const show = { s: time, h: hours, count, share };
  const exactly = (v) => v.toLocaleString("en", { maximumFractionDigits: 2 });

  // --- scales and axes
  function powers(low, high) {
    const found = [];
    const fine = high / low < 100 ? [1, 2, 5] : [1];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
      for (const m of fine) {
        const v = m * 10 ** e;
        if (v >= low * 0.999 && v <= high * 1.001) found.push(v);
      }
    return found;
  }
  const scale = (axis) => ({ time: false, distr: axis.log ? 3 : 1, range: (u, low, high) => [low, high] });
  const fixed = (axis) => ({ ...scale(axis), range: [axis.low, axis.high] });
  function axis(spec, side) {
    const found = {
      side, font: FONT, labelFont: FONT, labelSize: 15, label: spec.label, labelGap: 0, gap: 4,
      size: side === 3 ? 50 : 24, space: side === 3 ? 30 : 55,
      stroke: () => colour("muted"),
      grid: { stroke: () => colour("grid"), width: 1 },
      ticks: { show: false },
      values: (u, splits) => splits.map((v) => (v == null ? "" : show[spec.unit](v))), // null: no room for it
    };
    if (spec.log) found.splits = (u, i, low, high) => powers(low, high);
    else if (spec.unit === "s") found.incrs = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400];
    else if (spec.unit === "h") found.incrs = [0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 72, 168, 720];
    else found.incrs = incrs;
    return found;
  }
  const incrs = [...Array(13).keys()].flatMap((e) => [1, 2, 5].map((m) => m * 10 ** e));

  // --- drawing, in canvas pixels
  function clipped(u, draw) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    draw(ctx);
    ctx.restore();
  }
  function text(ctx, what, x, y, ink, align = "left") {
    ctx.font = FONT.replace("11px", 11 * ratio() + "px");
    ctx.textAlign = align;
    ctx.lineJoin = "round";
    ctx.lineWidth = 3 * ratio();
    ctx.strokeStyle = colour("paper");
    ctx.strokeText(what, x, y);
    ctx.fillStyle = ink;
    ctx.fillText(what, x, y);
  }
  function drawBands(u, bands) {
    const { ctx, bbox } = u;
    bands.forEach((band) => {
      const left = Math.max(u.valToPos(band.start, "x", true), bbox.left);
      const right = Math.min(u.valToPos(band.end, "x", true), bbox.left + bbox.width);
      if (right <= left) return;
      ctx.save();
      ctx.fillStyle = colour("band");
      if (band.measured) ctx.fillRect(left, bbox.top, right - left, bbox.height);
      ctx.fillStyle = colour("rule");
      ctx.fillRect(left, bbox.top - 15 * ratio(), ratio(), bbox.height + 15 * ratio());
      ctx.font = FONT.replace("11px", 11 * ratio() + "px");
      const full = band.name + (band.measured ? " (measured)" : "");
      const name = [full, band.name].find((t) => ctx.measureText(t).width < right - left - 8 * ratio());
      if (name) text(ctx, name, left + 5 * ratio(), bbox.top - 5 * ratio(), colour("muted"));
      ctx.restore();
    });
  }
  function drawTicks(u, ticks) {
    const { ctx, bbox } = u, r = ratio();
    ctx.fillStyle = colour("ink");
    ctx.strokeStyle = colour("muted");
    ctx.lineWidth = r;
    for (const t of ticks) {
      const x = u.valToPos(t, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.setLineDash([2 * r, 3 * r]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.beginPath();
      ctx.moveTo(x - 4 * r, bbox.top);
      ctx.lineTo(x + 4 * r, bbox.top);
      ctx.lineTo(x, bbox.top + 6 * r);
      ctx.fill();
    }
  }
  // style "drop": a share falls where the operation before it ended; else a value lasts until the next reading.
  function outline(u, line) {
    const path = new Path2D();
    let before = null;
    line.x.forEach((vx, i) => {
      const x = u.valToPos(vx, "x", true), y = u.valToPos(line.y[i], "y", true);
      if (!before) path.moveTo(line.style === "drop" ? u.bbox.left : x, y);
      if (before && line.style !== "drop") path.lineTo(x, before[1]);
      if (before && line.style === "drop") path.lineTo(before[0], y);
      path.lineTo(x, y);
      before = [x, y];
    });
    return path;
  }
  function drawLine(u, line) {
    const { ctx, bbox } = u;
    if (!line.x.length) return;
    const ink = colour(line.colour), path = outline(u, line);
    if (line.style === "area") {
      const fill = new Path2D(path), floor = bbox.top + bbox.height;
      fill.lineTo(u.valToPos(line.x[line.x.length - 1], "x", true), floor);
      fill.lineTo(u.valToPos(line.x[0], "x", true), floor);
      ctx.globalAlpha = 0.16;
      ctx.fillStyle = ink;
      ctx.fill(fill);
      ctx.globalAlpha = 1;
    }
    ctx.strokeStyle = ink;
    ctx.lineWidth = 1.6 * ratio();
    ctx.lineJoin = "round";
    ctx.stroke(path);
  }
  function drawSymbol(ctx, symbol, x, y, size, ink) {
    ctx.beginPath();
    if (symbol === "dot") {
      ctx.fillStyle = ink;
      ctx.arc(x, y, size * 0.55, 0, 7);
      ctx.fill();
      return;
    }
    if (symbol === "cross") {
      ctx.moveTo(x - size, y - size); ctx.lineTo(x + size, y + size);
      ctx.moveTo(x + size, y - size); ctx.lineTo(x - size, y + size);
    } else {
      ctx.moveTo(x - size, y + size * 0.8); ctx.lineTo(x + size, y + size * 0.8); ctx.lineTo(x, y - size); ctx.closePath();
      ctx.fillStyle = colour("paper");
      ctx.fill();
    }
    ctx.strokeStyle = ink;
    ctx.lineWidth = 1.3 * ratio();
    ctx.stroke();
  }
  function drawPoints(u, points, ink) {
    u.ctx.globalAlpha = points.symbol === "dot" ? 0.5 : 1;
    points.x.forEach((vx, i) =>
      drawSymbol(u.ctx, points.symbol, u.valToPos(vx, "x", true), u.valToPos(points.y[i], "y", true), 3.2 * ratio(), ink));
    u.ctx.globalAlpha = 1;
  }
  function drawBars(u, bars, ink) {
    const floor = u.bbox.top + u.bbox.height;
    u.ctx.fillStyle = ink;
    bars.counts.forEach((n, i) => {
      if (!n) return;
      const left = u.valToPos(bars.edges[i], "x", true), right = u.valToPos(bars.edges[i + 1], "x", true);
      const top = u.valToPos(n, "y", true), gap = Math.min(ratio(), (right - left) / 4);
      u.ctx.fillRect(left + gap / 2, top, right - left - gap, floor - top);
    });
  }
  function drawLanes(u, lanes) {
    const { ctx, bbox } = u, r = ratio();
    const step = bbox.height / (u.scales.y.max - u.scales.y.min), width = Math.max(0.8 * r, Math.min(3 * r, step * 0.55));
    const size = Math.max(1.6 * r, Math.min(3.2 * r, step * 0.5));
    lanes.forEach(([start, end, symbol, failed], i) => {
      const y = u.valToPos(i + 1, "y", true), x = u.valToPos(end, "x", true), ink = colour(symbol === "dot" ? "entries" : "fail");
      ctx.fillStyle = ink;
      const left = u.valToPos(start, "x", true);
      ctx.fillRect(left, y - width / 2, Math.max(x - left, r), width);
      if (symbol !== "dot") drawSymbol(ctx, symbol, x, y, size, ink);
      for (const t of failed) drawSymbol(ctx, "cross", u.valToPos(t, "x", true), y, size * 0.8, colour("ink"));
    });
  }
  function drawLimits(u, { limits, lines }, placed) {
    const { ctx, bbox } = u, r = ratio(), ink = colour("limit");
    for (const limit of limits) {
      const along = u.valToPos(limit.value, limit.axis, true);
      ctx.save();
      ctx.setLineDash([5 * r, 4 * r]);
      ctx.strokeStyle = ink;
      ctx.lineWidth = r;
      ctx.beginPath();
      if (limit.axis === "x") { ctx.moveTo(along, bbox.top); ctx.lineTo(along, bbox.top + bbox.height); }
      else { ctx.moveTo(bbox.left, along); ctx.lineTo(bbox.left + bbox.width, along); }
      ctx.stroke();
      ctx.restore();
      if (limit.axis === "x") label(u, limit.text, along, lines.length ? bbox.top + bbox.height : bbox.top + 20 * r, ink, placed, "right");
      else label(u, limit.text, bbox.left + bbox.width, along + 17 * r, ink, placed, "right");
    }
  }
  // A label above a point, kept inside the picture and moved up past the labels that are there already.
  function label(u, what, x, y, ink, placed, align = "left") {
    const { ctx, bbox } = u, r = ratio(), high = 14 * r;
    ctx.font = FONT.replace("11px", 11 * r + "px");
    const wide = ctx.measureText(what).width + 8 * r;
    let left = align === "right" ? x - wide : x - 10 * r;
    left = Math.max(bbox.left, Math.min(left, bbox.left + bbox.width - wide));
    let top = y - high - 3 * r;
    const hits = () => placed.some((p) => left < p.right && p.left < left + wide && top < p.bottom && p.top < top + high);
    while (hits() && top > bbox.top - high) top -= high;
    placed.push({ left, right: left + wide, top, bottom: top + high });
    if (align === "left" && top + high < y - 6 * r) {
      ctx.strokeStyle = colour("muted");
      ctx.lineWidth = r;
      ctx.beginPath(); ctx.moveTo(x, y - 2 * r); ctx.lineTo(x, top + high); ctx.stroke();
    }
    text(ctx, what, left + 4 * r, top + high - 4 * r, ink);
  }
  function drawPanel(u, panel) {
    const ink = colour(panel.colour), placed = [];
    clipped(u, () => {
      panel.lines.forEach((line) => drawLine(u, line));
      if (panel.bars) drawBars(u, panel.bars, ink);
      drawLanes(u, panel.lanes);
    });
    panel.points.forEach((points) => drawPoints(u, points, points.colour ? colour(points.colour) : ink));
    drawTicks(u, panel.ticks);
    drawLimits(u, panel, placed);
    [...panel.labels].reverse().forEach((l) =>
      label(u, l.text, u.valToPos(l.x, "x", true), u.valToPos(l.y, "y", true), colour("ink"), placed));
  }

  // --- what is under the cursor, in words
  function readout(u, chart, panel) {
    const { left, top } = u.cursor;
    if (left == null || left < 0) return "";
    const x = u.posToVal(left, "x");
    if (panel.bars) {
      const i = panel.bars.edges.findLastIndex((edge) => edge <= x);
      const n = panel.bars.counts[i];
      return n == null ? "" : `${time(panel.bars.edges[i])} to ${time(panel.bars.edges[i + 1])}: ${exactly(n)}`;
    }
    if (panel.lanes.length) {
      const lane = panel.lanes[Math.round(u.posToVal(top, "y")) - 1];
      return lane ? `due at ${time(lane[0])}, ${lane[2] === "dot" ? "up" : "not up"} after ${time(lane[1] - lane[0])}` : "";
    }
    if (panel.lines.length) {
      const at = panel.lines.map((line) => {
        const i = line.style === "drop" ? line.x.findIndex((v) => v >= x) : line.x.findLastIndex((v) => v <= x);
        return i < 0 ? null : `${line.name} ${chart.y.unit === "share" ? share(line.y[i]) : exactly(line.y[i])}`;
      });
      return `${show[chart.x.unit](x)}: ${at.filter(Boolean).join(", ")}`;
    }
    let best = 400, said = "";
    for (const points of panel.points)
      points.x.forEach((vx, i) => {
        const d = (u.valToPos(vx, "x") - left) ** 2 + (u.valToPos(points.y[i], "y") - top) ** 2;
        if (d < best) { best = d; said = `due at ${time(vx)}: ${time(points.y[i])}, ${points.name}`; }
      });
    return said;
  }

  // --- one uPlot a panel
  function make(element) {
    const chart = pictures[element.dataset.chart], panel = chart.panels[element.dataset.panel];
    const box = element.querySelector(".plot"), output = element.querySelector("output");
    const options = {
      width: box.clientWidth, height: chart.height, padding: [panel.bands.length ? 18 : 6, 22, 0, 0], legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: true } },
      scales: { x: scale(chart.x), y: fixed(chart.y) },
      axes: [axis(chart.x, 2), axis(chart.y, 3)],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: {
        drawClear: [(u) => drawBands(u, panel.bands)],
        draw: [(u) => drawPanel(u, panel)],
        setCursor: [(u) => { output.textContent = readout(u, chart, panel); }],
      },
    };
    const plot = new uPlot(options, [[chart.x.low, chart.x.high], [chart.y.low, chart.y.high]], box);
    return { plot, box, chart };
  }
  const plots = [...document.querySelectorAll(".panel")].map(make);
  const fit = () => plots.forEach(({ plot, box, chart }) => {
    if (box.clientWidth && box.clientWidth !== plot.width) plot.setSize({ width: box.clientWidth, height: chart.height });
  });
  const redraw = () => plots.forEach(({ plot }) => plot.redraw(false, true));
  const observer = new ResizeObserver(fit);
  document.querySelectorAll(".panels").forEach((panels) => observer.observe(panels));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  // On paper: light colours, half a page's width for panels that stand in pairs, no table folded away.
  addEventListener("beforeprint", () => {
    root.classList.add("print");
    document.querySelectorAll("details").forEach((d) => { d.dataset.was = d.open ? "1" : ""; d.open ||= d.querySelector("table") !== null; });
    plots.forEach(({ plot, chart }) => plot.setSize({ width: chart.panels.length > 1 ? 335 : 560, height: chart.height }));
    redraw();
  });
  addEventListener("afterprint", () => {
    root.classList.remove("print");
    document.querySelectorAll("details").forEach((d) => { d.open = Boolean(d.dataset.was); });
    fit();
    redraw();
  });
})();
