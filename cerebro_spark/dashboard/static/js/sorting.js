// Headers of tables that sort: a button in each, and aria-sort on the one that counts.

import { h, setAttr } from "./dom.js";

/** Compare values of any kind: numbers before texts, what is missing always last. */
export function compareValues(one, other, down) {
  const [none, noOther] = [isNone(one), isNone(other)];
  if (none || noOther) return none - noOther;
  const sign = down ? -1 : 1;
  if (typeof one === "number" && typeof other === "number") return sign * (one - other);
  return sign * String(one).localeCompare(String(other), "en", { numeric: true });
}

function isNone(value) {
  return value === null || value === undefined || value === "";
}

/**
 * A header that sorts.
 *
 * @param {Object} column {key, text, number, down}: `down` says that the first press sorts downwards.
 * @param {Object} order {key, down}: changed in place.
 * @param {function} onSort Called after a change.
 */
export function sortHeader(column, order, onSort) {
  const press = () => {
    order.down = order.key === column.key ? !order.down : Boolean(column.down);
    order.key = column.key;
    onSort();
  };
  const button = h("button", { type: "button", class: "sorter", onclick: press }, column.text);
  const node = h("th", { scope: "col", class: column.number ? "number" : null }, button);
  node.update = () => setAttr(node, "aria-sort", order.key === column.key ? (order.down ? "descending" : "ascending") : null);
  node.update();
  return node;
}
