// The lineage graph, arranged by dagre so that few arrows cross. Without scripts the server's own columns stay.
const arrange = () => document.querySelectorAll("svg.graph:not(.arranged)").forEach((drawing) => {
  const boxes = new Map([...drawing.querySelectorAll("[data-box]")].map((box) => [box.dataset.box, box]));
  const arrows = [...drawing.querySelectorAll("[data-from]")];
  const [width, height] = [Number(drawing.dataset.boxWidth), Number(drawing.dataset.boxHeight)];
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 64, marginx: 6, marginy: 6 });
  graph.setDefaultEdgeLabel(() => ({}));
  boxes.forEach((_, key) => graph.setNode(key, { width, height }));
  arrows.forEach((arrow) => graph.setEdge(arrow.dataset.from, arrow.dataset.to));
  dagre.layout(graph);
  boxes.forEach((box, key) => {
    const { x, y } = graph.node(key);
    box.setAttribute("transform", `translate(${x - width / 2} ${y - height / 2})`);
  });
  arrows.forEach((arrow) => {
    const [from, to] = [graph.node(arrow.dataset.from), graph.node(arrow.dataset.to)];
    const end = { x: to.x - width / 2, y: to.y }; // arrows leave and meet boxes in the middle of a side, not at a corner
    const [path, tip] = arrow.children;
    const between = graph.edge(arrow.dataset.from, arrow.dataset.to).points.slice(1, -1);
    const steps = [{ x: from.x + width / 2, y: from.y }, ...between, { x: end.x - 6, y: end.y }];
    let way = `M${steps[0].x} ${steps[0].y}`;
    for (let at = 1; at < steps.length; at += 1) {
      const [before, here] = [steps[at - 1], steps[at]];
      const bend = (before.x + here.x) / 2;
      way += ` C${bend} ${before.y} ${bend} ${here.y} ${here.x} ${here.y}`;
    }
    path.setAttribute("d", way);
    tip.setAttribute("points", `${end.x},${end.y} ${end.x - 8},${end.y - 4} ${end.x - 8},${end.y + 4}`);
  });
  const { width: wide, height: tall } = graph.graph();
  drawing.setAttribute("viewBox", `0 0 ${wide} ${tall}`);
  drawing.setAttribute("width", wide);
  drawing.setAttribute("height", tall);
  drawing.classList.add("arranged");
});
arrange();
document.addEventListener("htmx:afterSettle", arrange);
