"use strict";
// What went wrong, and that all is drawn, is noted on the page's root, for tests and for the curious.
const root = document.documentElement;
window.addEventListener("error", (event) => { root.dataset.error = String(event.message); });
document.addEventListener("securitypolicyviolation", (event) => {
  root.dataset.blocked = event.violatedDirective;
});

const read = (id) => JSON.parse(document.getElementById(id).textContent);

// The table of events: texts become text nodes, never markup, and rows are made as they are needed.
const PAGE = 300;
const table = read("event-data");
const words = table.rows.map(([time, node, round, name, details]) =>
  [table.nodes[node], "round " + round, table.names[name], details].join(" ").toLowerCase());
const body = document.querySelector("#events tbody");
const filter = document.getElementById("filter");
const more = document.getElementById("more");
let found = [];
let shown = 0;

function showMore() {
  const rows = document.createDocumentFragment();
  for (const index of found.slice(shown, shown + PAGE)) {
    const [time, node, round, name, details] = table.rows[index];
    const row = document.createElement("tr");
    const cells = [time.toFixed(3) + " s", table.nodes[node], round < 0 ? "" : round,
      table.names[name], details];
    cells.forEach((text, place) => {
      const cell = document.createElement("td");
      cell.textContent = text;
      if (place === 0 || place === 2) cell.className = "n";
      row.append(cell);
    });
    rows.append(row);
  }
  body.append(rows);
  shown = Math.min(shown + PAGE, found.length);
  more.hidden = shown === found.length;
  document.getElementById("shown").textContent =
    found.length + " of " + table.rows.length + " events" + (more.hidden ? "" : ", " + shown + " shown");
}

function applyFilter() {
  const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  found = [];
  words.forEach((text, index) => {
    if (wanted.every((word) => text.includes(word))) found.push(index);
  });
  body.replaceChildren();
  shown = 0;
  showMore();
}

// A link may carry a filter: report.html#filter=failure
function readLink() {
  const wanted = new URLSearchParams(location.hash.slice(1)).get("filter");
  if (wanted !== null) filter.value = wanted;
  applyFilter();
}

filter.addEventListener("input", applyFilter);
more.addEventListener("click", showMore);
window.addEventListener("hashchange", readLink);
readLink();

Promise.all(Object.values(read("chart-data")).map((item) => Bokeh.embed.embed_item(item)))
  .then((views) => { root.dataset.drawn = String(views.length); })
  .catch((error) => { root.dataset.error = String(error); });
