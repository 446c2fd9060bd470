"use strict";
// Switches the curves, sorts and filters the tables. Without it the page shows all figures, one below the other.
let chosen = null;
const hidden = new Set();

function showCurves() {
  for (const figure of document.querySelectorAll("figure[data-metric]")) {
    figure.hidden = chosen !== null && figure.dataset.metric !== chosen;
  }
  for (const part of document.querySelectorAll("figure[data-metric] g[id]")) {
    const name = /-(?:curve|band):(.*)$/s.exec(part.id);
    if (name) part.style.display = hidden.has(name[1]) ? "none" : "";
  }
}

// Numbers sort by what they were made from, and unknown ones come last.
function compare(a, b, column, sign) {
  const [x, y] = [a, b].map((row) => row.cells[column]);
  const [m, n] = [x, y].map((cell) => ("value" in cell.dataset ? Number(cell.dataset.value) : NaN));
  if (!Number.isNaN(m) && !Number.isNaN(n)) return sign * (m - n);
  if (Number.isNaN(m) !== Number.isNaN(n)) return Number.isNaN(m) ? 1 : -1;
  return sign * x.textContent.localeCompare(y.textContent);
}

function prepare() {
  const buttons = [...document.querySelectorAll(".switch button")];
  const choose = (button) => {
    chosen = button.dataset.value;
    buttons.forEach((each) => each.setAttribute("aria-pressed", each === button));
    showCurves();
  };
  buttons.forEach((button) => button.addEventListener("click", () => choose(button)));
  if (buttons.length) choose(buttons.find((each) => each.dataset.value === chosen) || buttons[0]);
  for (const box of document.querySelectorAll(".shown input")) {
    box.checked = !hidden.has(box.value);
    box.addEventListener("change", () => { hidden[box.checked ? "delete" : "add"](box.value); showCurves(); });
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
}
prepare();

// On paper all figures stand, also those that are not chosen.
window.addEventListener("beforeprint", () => document.querySelectorAll("figure").forEach((each) => { each.hidden = false; }));
window.addEventListener("afterprint", showCurves);

// A live page takes over what its server has newer; scroll position and chosen curves stay.
if ("live" in document.documentElement.dataset) {
  let version = null;
  setInterval(async () => {
    const answer = await fetch("version").catch(() => null);
    if (answer === null || !answer.ok) return;
    const newest = await answer.text();
    if (version !== null && newest !== version) {
      const page = await fetch("./").catch(() => null);
      if (page === null || !page.ok) return;
      const open = [...document.querySelectorAll("details")].map((each) => each.open);
      const read = new DOMParser().parseFromString(await page.text(), "text/html");
      document.querySelector("main").replaceWith(read.querySelector("main"));
      document.querySelectorAll("details").forEach((each, place) => { each.open = open[place] || false; });
      prepare();
    }
    version = newest;
  }, 2000);
}
