// Makes and changes elements. Text is only ever set as text: nothing here, or anywhere, parses HTML.

const SVG = "http://www.w3.org/2000/svg";
let choosers = 0;

/**
 * Make an element.
 *
 * @param {string} tag Its name.
 * @param {Object} [props] Attributes; `class`, `data` (an object), `vars` (CSS variables), and `onclick` and the like
 *   (functions). null and false leave an attribute out, except
 *   that false is a value for aria-….
 * @param {...(Node|string|number|null|Array)} children Strings become text.
 */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Make an element of SVG; see `h`. */
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) setProp(node, name, value);
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function setProp(node, name, value) {
  if (value === null || value === undefined || (value === false && !name.startsWith("aria-"))) return;
  if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
  else if (name === "data") Object.assign(node.dataset, value);
  else if (name === "vars") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
  else node.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : String(value));
}

/** Set the text of an element, if it has another one now. */
export function setText(node, text) {
  const wanted = text === null || text === undefined ? "" : String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** Set or, with null, take away an attribute, if it has another value now. */
export function setAttr(node, name, value) {
  if (value === null || value === undefined || (value === false && !name.startsWith("aria-"))) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/**
 * Make the children of `parent` show `items`, and keep the elements of those that were there: focus and scroll stay.
 *
 * @param {Element} parent It holds these children only.
 * @param {Array} items What to show, in order.
 * @param {function} key Names an item.
 * @param {function} create Makes the element of an item. It may give it a method `update(item)`.
 */
export function reconcile(parent, items, key, create) {
  const known = parent.itemNodes ?? new Map();
  const now = new Map();
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  let place = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    const node = known.get(name) ?? create(item);
    node.update?.(item);
    now.set(name, node);
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
  for (const [name, node] of known) if (now.get(name) !== node) node.remove();
  parent.itemNodes = now;
  // An element that is moved loses the focus.
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

/** Show that there is nothing to show yet, and why. */
export function emptyState(title, text, extra = null, small = true) {
  return h("div", { class: small ? "state small-state" : "state" }, h("strong", {}, title), text && h("p", {}, text), extra);
}

/** A label of a state. Its word is always there: colour alone says nothing to some. */
export function pill(state) {
  const node = h("span", { class: "pill" });
  node.update = (now, word = now) => {
    setText(node, word);
    node.dataset.state = now;
  };
  node.update(state);
  return node;
}

/** A bar from 0 to 1; the text beside it says the number. */
export function meter(share, state = "") {
  const inner = h("i");
  const node = h("span", { class: "meter", "aria-hidden": "true" }, inner);
  node.update = (now, kind = "") => {
    inner.style.width = `${(100 * Math.min(1, Math.max(0, now || 0))).toFixed(1)}%`;
    node.dataset.state = kind;
  };
  node.update(share, state);
  return node;
}

/** A row of buttons of which one is pressed. */
export function choice(label, options, chosen, onChoose) {
  const buttons = options.map(([value, text]) =>
    h("button", { type: "button", class: "tab", "aria-pressed": value === chosen, onclick: () => press(value) }, text),
  );
  const press = (value) => {
    options.forEach(([one], index) => setAttr(buttons[index], "aria-pressed", one === value));
    onChoose(value);
  };
  return h("div", { class: "tabs", role: "group", "aria-label": label }, buttons);
}

/** A labelled list to choose from. `update(options)` changes what it offers and keeps the choice if it can. */
export function chooser(label, options, chosen, onChoose) {
  // Beside its label, not in it: else its options count as a part of its name.
  const select = h("select", { id: `chooser-${(choosers += 1)}`, onchange: () => onChoose(select.value) });
  const node = h("span", { class: "inline-field" }, h("label", { for: select.id }, label), select);
  let known = "";
  node.update = (names, value = select.value) => {
    const wanted = JSON.stringify(names);
    if (wanted !== known) {
      known = wanted;
      select.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    }
    if (names.includes(value)) select.value = value;
  };
  node.update(options, chosen);
  return node;
}
