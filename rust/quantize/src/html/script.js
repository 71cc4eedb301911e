"use strict";
// Sorts a table by the column whose header is clicked, and filters its rows by the words typed.
function value(row, column, number) {
  const cell = row.cells[column];
  if (!number) return cell.textContent;
  return cell.dataset.value === undefined ? NaN : Number(cell.dataset.value);
}

function sort(body, rows, head) {
  const number = "number" in head.dataset;
  const descending = head.ariaSort === "ascending";
  for (const other of head.parentElement.cells) other.ariaSort = "none";
  head.ariaSort = descending ? "descending" : "ascending";
  const sign = descending ? -1 : 1;
  const compare = (a, b) => {
    const [x, y] = [a, b].map((row) => value(row, head.cellIndex, number));
    if (!number) return sign * x.localeCompare(y, undefined, { numeric: true });
    // Rows without a number are last in both directions.
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
    return sign * (x - y);
  };
  body.append(...rows.sort(compare));
}

function show(rows, text, shown) {
  const words = text.toLowerCase().split(/\s+/);
  let count = 0;
  for (const row of rows) {
    const text = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    count += !row.hidden;
  }
  shown.textContent = `${count} of ${rows.length}`;
}

for (const section of document.querySelectorAll("section.sortable")) {
  const tags = ["table", "input", "output"];
  const [table, filter, shown] = tags.map((tag) => section.querySelector(tag));
  const body = table.tBodies[0];
  const rows = [...body.rows];
  table.tHead.addEventListener("click", (event) => {
    const head = event.target.closest("th");
    if (head) sort(body, rows, head);
  });
  filter.addEventListener("input", () => show(rows, filter.value, shown));
  filter.parentElement.hidden = rows.length < 5;
  show(rows, "", shown);
}
