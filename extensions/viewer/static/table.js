// Tables whose numbers stand to the right.

import { el } from "./dom.js";

/** Rows as a table. A column is {title, cell(row), note, isNumber, isWide, isCut, isText}; `rowData(row)` names a row for tests. */
export function dataTable(columns, rows, { label, rowProperties = () => ({}), empty = "none" }) {
  const head = el(
    "tr",
    {},
    columns.map((column) =>
      el("th", { scope: "col", ...columnClass(column), title: column.note }, column.title),
    ),
  );
  const body = rows.map((row) =>
    el(
      "tr",
      rowProperties(row),
      columns.map((column) => dataCell(column, row)),
    ),
  );
  const table = el("table", { "aria-label": label }, el("thead", {}, head), el("tbody", {}, body));
  return el("div", { class: "scroll" }, table, rows.length === 0 ? el("p", { class: "faint" }, empty) : null);
}

/** Text that is cut is whole in the cell's title. */
function dataCell(column, row) {
  const cell = el("td", columnClass(column), column.cell(row));
  if (column.isCut && cell.querySelector("[title]") === null) {
    cell.title = cell.textContent;
  }
  return cell;
}

function columnClass(column) {
  const names = [
    column.isNumber ? "number" : null,
    column.isWide ? "wide" : null,
    column.isCut ? "cut" : null,
    column.isText ? "line" : null,
  ].filter((name) => name !== null);
  return names.length === 0 ? {} : { class: names.join(" ") };
}
