// The plots of a table's versions, drawn by uPlot over time. Without scripts the server's own drawing stays.
const numbers = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const sizes = ["B", "kB", "MB", "GB", "TB", "PB"];
const asSize = (value) => {
  let at = 0;
  while (value >= 1000 && at < sizes.length - 1) { value /= 1000; at += 1; }
  return `${at ? value.toFixed(1) : value} ${sizes[at]}`;
};
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function flags(points, top) {
  // Tags stand above their versions.
  return (plot) => {
    const { ctx } = plot;
    ctx.save();
    ctx.fillStyle = ctx.strokeStyle = colour("--accent");
    ctx.font = `600 ${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    ctx.setLineDash([3, 3]);
    points.forEach((point) => {
      if (!point.mark) return;
      const x = plot.valToPos(point.x, "x", true);
      ctx.beginPath();
      ctx.moveTo(x, plot.bbox.top + top);
      ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
      ctx.stroke();
      ctx.fillText(point.mark, Math.min(Math.max(x, 40), plot.bbox.left + plot.bbox.width - 20), plot.bbox.top + top - 4);
    });
    ctx.restore();
  };
}

function draw(figure) {
  const points = JSON.parse(figure.dataset.points);
  if (points.length < 2) return null;
  const isTime = points.every((point) => point.time) && points[0].time < points[points.length - 1].time;
  points.forEach((point, at) => { point.x = isTime ? point.time / 1000 : at; });
  const say = figure.dataset.unit === "bytes" ? asSize : (value) => numbers.format(value);
  const box = document.createElement("div");
  box.className = "drawn";
  box.setAttribute("aria-hidden", "true");
  const axis = { stroke: () => colour("--dim"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const plot = new uPlot({
    width: figure.clientWidth - 32,
    height: 170,
    padding: [16, 12, 0, 0],
    cursor: { y: false, points: { size: 8 } },
    legend: { live: true },
    scales: { x: { time: isTime }, y: { range: (_, low, high) => [0, high || 1] } },
    series: [
      { label: "Version", value: (_, __, ___, at) => (at === null ? "" : points[at].label) },
      { label: figure.dataset.title, stroke: () => colour("--accent"), fill: () => colour("--accent-soft"), width: 2,
        paths: uPlot.paths.stepped({ align: 1 }), points: { show: true, size: 6 }, value: (_, value) => (value === null ? "" : say(value)) },
    ],
    axes: [{ ...axis, values: isTime ? undefined : (_, places) => places.map((at) => (Number.isInteger(at) && points[at] ? points[at].label.replace("version ", "") : "")) },
           { ...axis, size: 62, values: (_, places) => places.map(say) }],
    hooks: { draw: [flags(points, 4)] },
  }, [points.map((point) => point.x), points.map((point) => point.value)], box);
  figure.append(box);
  figure.classList.add("has-drawing");
  box.addEventListener("click", () => {
    const at = plot.cursor.idx;
    if (at !== null && at !== undefined && points[at].href) location.assign(points[at].href);
  });
  return () => plot.setSize({ width: figure.clientWidth - 32, height: 170 });
}

const drawn = [...document.querySelectorAll("figure.plot[data-points]")].map(draw).filter(Boolean);
addEventListener("resize", () => drawn.forEach((again) => again()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((again) => again()));
