"use strict";
// Draws the charts, switches the curves and sorts the tables. Everything is inside the page.
const charts = JSON.parse(document.getElementById("charts").textContent);
const options = { responsive: true, displaylogo: false };
const PRINTED_WIDTH = 1040;  // pixels of A4 landscape between its margins

// Charts have the colors of the page, which is dark where the reader's system is, and white on paper.
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function colors(isDark) {
  const [text, page, line] = isDark ? ["#e6e6e6", "#16181b", "#34383d"] : ["#222", "#fff", "#e4e4e4"];
  return {
    paper_bgcolor: page, plot_bgcolor: page, "font.color": text,
    "xaxis.gridcolor": line, "yaxis.gridcolor": line, "xaxis.zerolinecolor": line, "yaxis.zerolinecolor": line,
  };
}
function draw(place, chart) {
  Plotly.react(place, chart.data, chart.layout, options);
  Plotly.relayout(place, colors(dark.matches));
}
for (const place of document.querySelectorAll("[data-chart]")) draw(place, charts[place.dataset.chart]);
const places = document.getElementsByClassName("chart");

// Nodes of the graph get smaller with the page, and are numbered while there is room.
const graph = document.querySelector("[data-chart=graph]");
function fitNodes() {
  const room = graph.clientWidth / Math.sqrt(charts.graph.data[1].x.length);
  const size = Math.max(3, Math.min(20, room / 4));
  Plotly.restyle(graph, { "marker.size": size, mode: size < 14 ? "markers" : "markers+text" }, [1]);
}
if (graph) {
  fitNodes();
  window.addEventListener("resize", fitNodes);
}

dark.addEventListener("change", () => [...places].forEach((place) => Plotly.relayout(place, colors(dark.matches))));
window.addEventListener("beforeprint", () => [...places].forEach((place) =>
  Plotly.relayout(place, { ...colors(false), width: PRINTED_WIDTH })));
window.addEventListener("afterprint", () => [...places].forEach((place) =>
  Plotly.relayout(place, { ...colors(dark.matches), width: null, autosize: true })));

const chosen = {};
function showCurves() {
  draw(document.getElementById("curves"), charts[`${chosen.metric}_${chosen.axis}`]);
}
for (const group of document.querySelectorAll(".switch")) {
  const buttons = [...group.querySelectorAll("button")];
  const choose = (button) => {
    chosen[group.dataset.group] = button.dataset.value;
    buttons.forEach((each) => each.classList.toggle("chosen", each === button));
  };
  choose(buttons[0]);
  buttons.forEach((button) => button.addEventListener("click", () => { choose(button); showCurves(); }));
}
if (document.getElementById("curves")) showCurves();

// A live page loads itself again when its server has a newer one, and looks as before.
if ("live" in document.documentElement.dataset) {
  let version = null;
  const before = JSON.parse(sessionStorage.getItem("place") || "null");
  if (before) {
    for (const button of document.querySelectorAll(".switch button")) {
      if (Object.values(before.chosen).includes(button.dataset.value)) button.click();
    }
    window.scrollTo(0, before.scroll);
  }
  setInterval(async () => {
    const answer = await fetch("version").catch(() => null);
    if (answer === null || !answer.ok) return;
    const newest = await answer.text();
    if (version !== null && newest !== version) {
      sessionStorage.setItem("place", JSON.stringify({ chosen, scroll: window.scrollY }));
      location.reload();
    }
    version = newest;
  }, 2000);
}

// Numbers sort by what they were made from, and unknown ones come last.
function compare(a, b, column, sign) {
  const [x, y] = [a, b].map((row) => row.cells[column]);
  const [m, n] = [x, y].map((cell) => ("value" in cell.dataset ? Number(cell.dataset.value) : NaN));
  if (!Number.isNaN(m) && !Number.isNaN(n)) return sign * (m - n);
  if (Number.isNaN(m) !== Number.isNaN(n)) return Number.isNaN(m) ? 1 : -1;
  return sign * x.textContent.localeCompare(y.textContent);
}
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => heading.addEventListener("click", () => {
    const sign = heading.ariaSort === "ascending" ? -1 : 1;
    headings.forEach((each) => each.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows].sort((a, b) => compare(a, b, column, sign));
    table.tBodies[0].append(...rows);
  }));
}

// The field above a table leaves the rows that have all of its words.
for (const field of document.querySelectorAll(".filter")) {
  const rows = [...field.nextElementSibling.tBodies[0].rows];
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
}
