"use strict";
// Draws the charts, switches the curves and sorts the tables. Everything is inside the page.
const charts = JSON.parse(document.getElementById("charts").textContent);
const options = { responsive: true, displaylogo: false };

for (const place of document.querySelectorAll("[data-chart]")) {
  const chart = charts[place.dataset.chart];
  Plotly.newPlot(place, chart.data, chart.layout, options);
}

const chosen = {};
function showCurves() {
  const chart = charts[`${chosen.metric}_${chosen.axis}`];
  Plotly.react("curves", chart.data, chart.layout, options);
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
