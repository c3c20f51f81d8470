// Sort every table of a page by a click on a heading, or by Enter or Space on it.
// No dependency; a site includes it as it is. Without it, tables stay in the order of the page.
(() => {
  "use strict";

  // Return the number that a cell begins with, "none" as 0, and null for any other text.
  function numberOf(text) {
    const found = text.replace(/,(?=\d{3})/g, "").match(/^[+-]?\d+(\.\d+)?/);
    if (found) return Number(found[0]);
    return text.startsWith("none") ? 0 : null;
  }

  const textOf = (row, column) => (row.cells[column]?.textContent ?? "").trim();
  const isMissing = (text) => ["", "–", "?", "unknown", "not measured yet"].includes(text);

  // Sort rows by a column. Cells without a value stay last in both directions.
  function sortRows(body, column, descending, numeric) {
    const keyed = [...body.rows].map((row) => {
      const text = textOf(row, column);
      return { row, key: numeric ? numberOf(text) : isMissing(text) ? null : text };
    });
    keyed.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
      const order = numeric ? a.key - b.key : a.key.localeCompare(b.key);
      return descending ? -order : order;
    });
    body.append(...keyed.map(({ row }) => row));
  }

  function makeSortable(table) {
    const body = table.tBodies[0];
    const headings = table.tHead ? [...table.tHead.rows[0].cells] : [];
    if (!body || table.dataset.sortable) return;
    table.dataset.sortable = "true";
    headings.forEach((heading, column) => {
      const numeric = [...body.rows].some((row) => /^[+-]?\d/.test(textOf(row, column)));
      const button = document.createElement("button");
      const arrow = document.createElement("span");
      button.type = "button";
      button.style.cssText =
        "font: inherit; color: inherit; background: none; border: 0; padding: 0;" +
        "cursor: pointer; text-align: inherit";
      arrow.setAttribute("aria-hidden", "true");
      button.append(...heading.childNodes);
      heading.append(button);
      button.append(arrow);
      button.addEventListener("click", () => {
        // Numbers begin with the highest, words with A.
        const before = heading.getAttribute("aria-sort");
        const descending = before ? before === "ascending" : numeric;
        for (const other of headings) {
          other.removeAttribute("aria-sort");
          const mark = other.querySelector("span[aria-hidden]");
          if (mark) mark.textContent = "";
        }
        heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
        arrow.textContent = descending ? " ▼" : " ▲";
        sortRows(body, column, descending, numeric);
      });
    });
  }

  const start = () => document.querySelectorAll("table").forEach(makeSortable);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
